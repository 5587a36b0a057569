//! Memory that processes share: mappings, and the layouts of what is mapped.

pub mod control_page;
pub mod mapping;
pub mod table;
