//! Checks of `tidepool doctor` on the machine: kernel, FUSE, huge pages, limits.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use tidepool_pfs::contract::Outcome as Found;
use tidepool_proto::size::MemoryLimit;

use super::Findings;
use tidepool_daemon::machine::{memory_field, memory_limit};
use tidepool_terminal::output::size;

type Finding = (Found, String, String);

fn ok(measured: impl Into<String>) -> Finding {
    (Found::Ok, measured.into(), String::new())
}

fn degraded(measured: impl Into<String>, consequence: &str) -> Finding {
    (Found::Degraded, measured.into(), consequence.to_owned())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

/// Runs all checks of the machine.
pub fn run(findings: &mut Findings) {
    findings.check("kernel", || {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        kernel(&release)
    });
    findings.check("fuse-device", || fuse_device(Path::new("/dev/fuse")));
    findings.check("passthrough-privilege", privilege);
    findings.check("huge-pages", || {
        huge_pages(read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), is_root())
    });
    findings.check("descriptors", || {
        descriptors(getrlimit(Resource::Nofile).maximum, number("/proc/sys/fs/nr_open"))
    });
    findings.check("memlock", || memlock(getrlimit(Resource::Memlock).current));
    findings.check("mappings", || mappings(number("/proc/sys/vm/max_map_count")));
    findings.check("memory", || {
        let meminfo = read("/proc/meminfo").unwrap_or_default();
        memory(memory_limit().ok(), memory_field(&meminfo, "MemTotal"))
    });
    findings.check("swap", || swap(&read("/proc/swaps").unwrap_or_default()));
    findings.check("user-namespaces", user_namespaces);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Finding {
    match version(release) {
        Some(version) if version >= (6, 9) => ok(format!("Linux {release}")),
        Some(version) if ((5, 14)..(6, 6)).contains(&version) => degraded(
            format!("Linux {release}"),
            "no FUSE passthrough before 6.9, and no shared mappings of direct opens before 6.6: \
             mounted reads are answered by the node through the kernel's page cache; files opened \
             for appending cannot be mapped shared",
        ),
        Some(version) if version >= (5, 14) => degraded(
            format!("Linux {release}"),
            "no FUSE passthrough before 6.9: mounted reads are answered by the node",
        ),
        _ => (
            Found::Failed,
            format!("Linux {release}"),
            "Linux 5.14 or later is needed to populate memory safely".to_owned(),
        ),
    }
}

fn fuse_device(device: &Path) -> Finding {
    match fs::OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => ok(format!("{} opens", device.display())),
        Err(error) => degraded(
            format!("{}: {error}", device.display()),
            "no mount; the library and Hadoop and Python paths need none (`modprobe fuse`, or \
             give the container the device)",
        ),
    }
}

fn privilege() -> Finding {
    if is_root() {
        return ok("running as root");
    }
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"];
    let may_run = |path: &&str| rustix::fs::access(*path, rustix::fs::Access::EXEC_OK).is_ok();
    let mount = match helper.iter().any(may_run) {
        true => "fusermount3 mounts",
        false => "no fusermount3 that this user may run, so no mount",
    };
    degraded(
        format!("not root; {mount}"),
        "a node of this user has no passthrough opens, and its mount is for him alone",
    )
}

/// `setting` is the content of `shmem_enabled`, the chosen word in brackets.
fn huge_pages(setting: Option<String>, root: bool) -> Finding {
    let Some(setting) = setting else {
        return degraded("the kernel has no transparent huge pages", "4 KiB pages: slower to free");
    };
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    let measured = format!("shmem_enabled is `{chosen}`");
    match chosen.as_str() {
        "always" | "within_size" | "advise" | "force" => ok(measured),
        _ if root && chosen != "deny" => ok(format!("{measured}; a private tmpfs has them")),
        _ => degraded(
            measured,
            "4 KiB pages: reads at half the speed, 1 GiB takes 200 ms to free; cure: echo advise \
             > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}

fn descriptors(hard: Option<u64>, kernel: Option<u64>) -> Finding {
    let allowed = hard.or(kernel).unwrap_or(u64::MAX);
    let measured = format!("{allowed} a process");
    if allowed >= 65_536 {
        return ok(measured);
    }
    degraded(
        measured,
        "fewer open files and clients; raise the hard limit (LimitNOFILE, ulimit -Hn)",
    )
}

fn memlock(current: Option<u64>) -> Finding {
    match current {
        None => ok("no limit"),
        Some(bytes) => ok(format!("{}; the store locks no memory", size(bytes))),
    }
}

fn mappings(count: Option<u64>) -> Finding {
    match count {
        Some(count) if count < 65_530 => degraded(
            format!("vm.max_map_count is {count}"),
            "fewer segments are mapped at a time; set it to 65530 or more",
        ),
        Some(count) => ok(format!("vm.max_map_count is {count}")),
        None => (Found::Skipped, "vm.max_map_count is unreadable".to_owned(), String::new()),
    }
}

fn memory(limit: Option<MemoryLimit>, total: Option<u64>) -> Finding {
    match (limit, total) {
        (Some(limit), Some(total)) if limit.bytes < total => degraded(
            format!("{} by {}, of {}", size(limit.bytes), limit.source, size(total)),
            "a share such as 60% is of this limit; the store counts against it",
        ),
        (Some(limit), _) => ok(format!("{}, {}", size(limit.bytes), limit.source)),
        (None, _) => {
            (Found::Failed, "/proc/meminfo is unreadable".to_owned(), "mount /proc".to_owned())
        }
    }
}

fn swap(swaps: &str) -> Finding {
    let areas = swaps.lines().skip(1).filter(|line| !line.is_empty()).count();
    if areas == 0 {
        return ok("none");
    }
    degraded(
        format!("{areas} swap areas"),
        "the kernel may write cached bytes to disk; a hit then reads them back (swapoff -a)",
    )
}

fn user_namespaces() -> Finding {
    let most = number("/proc/sys/user/max_user_namespaces");
    let allowed = number("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or(1);
    let restricted = number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").unwrap_or(0);
    if is_root() {
        return ok("not needed: running as root");
    }
    match most {
        Some(most) if most > 0 && allowed == 1 && restricted == 0 => ok("users may make them"),
        _ => degraded(
            "users may not make them",
            "without root, only fusermount3 can mount, and 2 MiB pages need shmem_enabled=advise",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(finding: Finding) -> Found {
        finding.0
    }

    #[test]
    fn kernels_are_told_apart() {
        assert_eq!(outcome(kernel("6.18.44-generic")), Found::Ok);
        assert_eq!(outcome(kernel("6.9.0")), Found::Ok);
        assert_eq!(outcome(kernel("5.14.0-427.el9")), Found::Degraded);
        assert_eq!(outcome(kernel("4.18.0-553.el8")), Found::Failed);
    }

    #[test]
    fn huge_pages_depend_on_setting_and_privilege() {
        let of = |setting: &str, root| outcome(huge_pages(Some(setting.to_owned()), root));
        assert_eq!(of("always within_size [advise] never deny force", false), Found::Ok);
        assert_eq!(of("always within_size advise [never] deny force", false), Found::Degraded);
        assert_eq!(of("always within_size advise [never] deny force", true), Found::Ok);
        assert_eq!(of("always within_size advise never [deny] force", true), Found::Degraded);
        assert_eq!(outcome(huge_pages(None, true)), Found::Degraded);
    }

    #[test]
    fn limits_are_judged() {
        assert_eq!(outcome(descriptors(Some(1024), None)), Found::Degraded);
        assert_eq!(outcome(descriptors(Some(1 << 20), None)), Found::Ok);
        assert_eq!(outcome(mappings(Some(1000))), Found::Degraded);
        let limit = MemoryLimit { bytes: 1 << 30, source: "the limit in /x".to_owned() };
        assert_eq!(outcome(memory(Some(limit.clone()), Some(2 << 30))), Found::Degraded);
        assert_eq!(outcome(memory(Some(limit), Some(1 << 30))), Found::Ok);
        assert_eq!(outcome(swap("Filename Type\n/dev/sda2 partition\n")), Found::Degraded);
        assert_eq!(outcome(fuse_device(Path::new("/dev/no-such-device"))), Found::Degraded);
    }
}
