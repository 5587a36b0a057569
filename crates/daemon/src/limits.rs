//! Resource limits of the node's process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidepool_node::server::ServerLimits;
use tidepool_proto::config::ClientLimits;

/// What the kernel gives a process that nobody set a limit for; a lower one is somebody's wish.
const UNSET_DESCRIPTORS_MAX: u64 = 4096;
const WANTED_DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the number of descriptors to what the process is allowed, and further where it has the
/// right to and nobody chose a low limit. Returns the number in force.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit
        .maximum
        .is_some_and(|max| (UNSET_DESCRIPTORS_MAX..WANTED_DESCRIPTORS_MAX).contains(&max))
    {
        let system = std::fs::read_to_string("/proc/sys/fs/nr_open");
        let system = system.ok().and_then(|text| text.trim().parse().ok());
        let wanted = Some(WANTED_DESCRIPTORS_MAX.min(system.unwrap_or(WANTED_DESCRIPTORS_MAX)));
        // Without the right to do so, what is allowed is taken below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted });
    }
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A refusal leaves the former limit in force, which is what is read back.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The limits of the socket server for those of the configuration.
pub fn server_limits(limits: &ClientLimits) -> ServerLimits {
    let ClientLimits { descriptors_max, pinned_bytes_max, requests_max, connections_max } = *limits;
    let defaults = ServerLimits::default();
    let descriptors_max = descriptors_max as usize;
    let connections_max = connections_max as usize;
    ServerLimits {
        connections_max: defaults.connections_max.max(connections_max),
        connections_per_user_max: connections_max,
        handles_max: defaults.handles_max.max(descriptors_max),
        handles_per_user_max: defaults.handles_per_user_max.max(descriptors_max),
        handles_per_connection_max: descriptors_max,
        borrowed_bytes_per_user_max: pinned_bytes_max,
        requests_in_flight_max: requests_max as usize,
        ..defaults
    }
}
