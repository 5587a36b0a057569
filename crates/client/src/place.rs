//! Where a node puts its socket if nobody says so. Looks at the environment only.

use std::path::{Path, PathBuf};

/// Where root's node puts its socket, which serves every user of the machine.
pub const MACHINE_SOCKET: &str = "/run/tidepool/node.sock";

/// Socket to ask where none is named: that of a node of this user, or of root where he runs none.
pub fn socket_to_ask() -> PathBuf {
    let own = default_socket();
    let of_machine = Path::new(MACHINE_SOCKET);
    if !own.exists() && of_machine.exists() { of_machine.to_owned() } else { own }
}

/// Socket of a node where none is named: one a machine for root, one a login otherwise.
pub fn default_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from(MACHINE_SOCKET);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute()).unwrap_or_else(|| {
        PathBuf::from(format!("/tmp/tidepool-{}", rustix::process::geteuid().as_raw()))
    });
    runtime.join("tidepool/node.sock")
}
