//! `tidepool control simulate`, `replay` and `tune`: policies of memory control in virtual time,
//! decisions made again from their log, and recommended parameters.

pub mod arguments;
mod pictures;
mod replay;
mod simulate;
mod tune;

pub use replay::replay;
pub use simulate::simulate;
pub use tune::tune;
