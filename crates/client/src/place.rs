//! Default paths of the socket: where a node puts it, and which one a client asks.

use std::io;
use std::path::{Path, PathBuf};

use tidepool_proto::wire::socket::connect_at_once;

/// Where root's node puts its socket, which serves every user of the machine.
pub const MACHINE_SOCKET: &str = "/run/tidepool/node.sock";

/// Socket to ask where none is named: that of a node of this user, or else that of root's node.
pub fn socket_to_ask() -> PathBuf {
    let own = default_socket();
    let of_machine = Path::new(MACHINE_SOCKET);
    if is_left_over(&own) && of_machine.exists() { of_machine.to_owned() } else { own }
}

/// Whether no process listens at a path: it is not there, as far as this user can see, or a node
/// that was killed left it.
fn is_left_over(socket: &Path) -> bool {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    !socket.exists() || connect_at_once(socket).is_err_and(is_refused)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_listens_at_is_left_over() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        assert!(is_left_over(&socket), "not there");
        let node = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(!is_left_over(&socket));
        drop(node);
        assert!(socket.exists() && is_left_over(&socket), "of a node that was killed");
        assert!(is_left_over(&socket.join("node.sock")), "below no directory");
        assert!(is_left_over(&directory.path().join("long/".repeat(40))), "too long for a socket");
    }
}
