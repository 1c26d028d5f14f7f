//! From graph to program, and the proof that the program computes the graph.

pub mod checker;
