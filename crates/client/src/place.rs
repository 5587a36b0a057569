//! Where a node puts its socket if nobody says so. Looks at the environment only.

use std::path::PathBuf;

/// Socket of a node where none is named: one a machine for root, one a login otherwise.
pub fn default_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/tidepool/node.sock");
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute()).unwrap_or_else(|| {
        PathBuf::from(format!("/tmp/tidepool-{}", rustix::process::geteuid().as_raw()))
    });
    runtime.join("tidepool/node.sock")
}
