//! The functional units, as `ir` describes them.

use pyo3::prelude::*;
use tpuflow_ir::Unit;

/// Registers the class and the function of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<UnitSpec>()?;
    module.add_function(wrap_pyfunction!(units, module)?)
}

/// The description of a functional unit.
#[pyclass(module = "tpuflow._core", frozen, get_all)]
struct UnitSpec {
    /// Name in files and programs.
    name: &'static str,
    /// Short name for people.
    short: &'static str,
    /// The unit.
    title: &'static str,
    /// Whether it moves data between external memory and a cache.
    is_dma: bool,
    /// Its color on light and on dark pages.
    colors: (&'static str, &'static str),
}

/// All units, in the order of counters.
#[pyfunction]
fn units() -> Vec<UnitSpec> {
    let described = |unit: Unit| {
        let spec = unit.spec();
        let (is_dma, [light, dark]) = (unit.is_dma(), spec.color);
        UnitSpec { name: spec.name, short: spec.short, title: spec.title, is_dma, colors: (light, dark) }
    };
    Unit::ALL.into_iter().map(described).collect()
}
