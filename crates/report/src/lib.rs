//! Parts that reports of measurements share: charts that are understood at a glance, as SVG and
//! PNG, pages of HTML around them, and a note on whether the machine was quiet enough for the
//! figures. Knows nothing of the subject of a report.

pub mod axis;
pub mod bustle;
pub mod canvas;
pub mod chart;
pub mod legible;
pub mod page;
#[cfg(feature = "png")]
pub mod png;
pub mod text;
