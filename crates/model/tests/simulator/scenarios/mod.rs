//! What must happen on a node in each situation that memory control is made for. All time is
//! virtual. Figures are printed; `--nocapture` shows them.

mod demand;
mod faults;
mod hostile;
mod keeps;
mod limits;
mod stores;
mod two_nodes;
