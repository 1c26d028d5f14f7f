//! Typed indices: a `TensorId` is never a `LayerId`, and neither is a length.

/// Defines an index: a number of 32 bits that is told apart from all others.
#[macro_export]
macro_rules! define_index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in the vector it indexes.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The index of position `position`.
            ///
            /// # Panics
            /// When `position` exceeds `u32::MAX`, more than any model or program holds.
            #[must_use]
            pub fn new(position: usize) -> Self {
                Self(u32::try_from(position).expect("index fits 32 bits"))
            }
        }
    };
}

define_index! {
    /// A tensor of a [`crate::Graph`].
    TensorId
}
define_index! {
    /// A layer of a [`crate::Graph`], in topological order.
    LayerId
}
define_index! {
    /// An instruction of a [`crate::Program`], or of one that is being made: its position in the serial order.
    InstructionId
}
define_index! {
    /// A bank of a cache.
    BankId
}
define_index! {
    /// A descriptor of a [`crate::Program`].
    DescriptorId
}
