//! The names under which schedulers know this host: what `fs.tide.host.names` lists where jobs
//! shall run on this host alone. On several nodes the names of `cluster_nodes` go for them.

use std::ffi::CStr;
use std::net::{IpAddr, ToSocketAddrs};

use tidepool_pfs::contract::Outcome as Found;

use super::Findings;

/// Runs the check.
pub fn run(findings: &mut Findings) {
    findings.check("host-name", || {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let address = (name.as_str(), 0).to_socket_addrs().ok().and_then(|mut found| found.next());
        let address = address.map(|address| address.ip());
        judge(&name, address, address.and_then(name_of).as_deref())
    });
}

/// What the host's own name, the address behind it, and that address's name come to.
fn judge(name: &str, address: Option<IpAddr>, canonical: Option<&str>) -> (Found, String, String) {
    let cure = "where fs.tide.host.names shall send jobs to this host, name it and its address in \
                DNS or /etc/hosts first";
    let Some(address) = address else {
        return (Found::Ok, format!("{name} has no address"), cure.to_owned());
    };
    let Some(canonical) = canonical else {
        return (Found::Ok, format!("{name} is {address}, which has no name"), cure.to_owned());
    };
    // A worker of Spark takes an interface's address for one of its own.
    let own = if address.is_loopback() { ", for Spark that of an interface" } else { "" };
    let seen = format!("{canonical} ({address}{own})");
    if canonical == "localhost" || canonical.starts_with("localhost.") {
        // To schedulers it says nothing.
        return (Found::Ok, seen, cure.to_owned());
    }
    (Found::Ok, seen, String::new())
}

/// The name that the system gives an address.
fn name_of(address: IpAddr) -> Option<String> {
    // SAFETY: an all-zero `sockaddr_storage` is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        IpAddr::V4(address) => {
            let socket: *mut libc::sockaddr_in = (&raw mut storage).cast();
            // SAFETY: `sockaddr_storage` has room and alignment for every address.
            unsafe {
                (*socket).sin_family = libc::AF_INET as libc::sa_family_t;
                (*socket).sin_addr.s_addr = u32::from_ne_bytes(address.octets());
            }
            size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(address) => {
            let socket: *mut libc::sockaddr_in6 = (&raw mut storage).cast();
            // SAFETY: as above.
            unsafe {
                (*socket).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*socket).sin6_addr.s6_addr = address.octets();
            }
            size_of::<libc::sockaddr_in6>()
        }
    };
    let mut host = [0; libc::NI_MAXHOST as usize];
    // SAFETY: all pointers are to live values of the lengths given.
    let code = unsafe {
        libc::getnameinfo(
            (&raw const storage).cast(),
            length as libc::socklen_t,
            host.as_mut_ptr(),
            libc::NI_MAXHOST,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    // SAFETY: on success the name ends with NUL.
    (code == 0).then(|| unsafe { CStr::from_ptr(host.as_ptr()) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_send_jobs_elsewhere_are_told() {
        let address = Some(IpAddr::from([10, 0, 0, 7]));
        let (found, seen, _) = judge("c7", address, Some("c7.site"));
        assert_eq!((found, seen.as_str()), (Found::Ok, "c7.site (10.0.0.7)"));
        assert!(judge("c7", None, None).2.contains("/etc/hosts"));
        assert!(judge("c7", address, None).2.contains("/etc/hosts"));
        let own = Some(IpAddr::from([127, 0, 0, 1]));
        let (found, seen, cure) = judge("c7", own, Some("localhost"));
        assert_eq!(found, Found::Ok, "nothing depends on it");
        assert!(seen.contains("localhost") && cure.contains("/etc/hosts"));
    }

    #[test]
    fn the_system_is_asked() {
        // The name of the loopback address is in /etc/hosts, if anywhere.
        assert!(name_of(IpAddr::from([127, 0, 0, 1])).is_none_or(|name| !name.is_empty()));
    }
}
