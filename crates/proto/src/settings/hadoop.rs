//! The options of the Hadoop front end, and the number that its two halves compare. The Java
//! constants and the reference are generated from here; Java restates no key and no default.

use crate::ByteSize;
use crate::option::{OptionKind, OptionSpec, READ_MODES, Setting, WRITE_MODES, table};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Version of the calls between the Java classes and the native library. Raised with every change
/// of a native method, so that a jar and a library of two releases refuse each other by name.
pub const JAVA_ABI: i32 = 6;

/// What every key begins with.
pub const KEY_PREFIX: &str = "fs.tide.";

table! {
    /// Options of the Hadoop front end, in its configuration, and per open where it says so.
    HADOOP_OPTIONS,
    /// Options of the Hadoop front end as written.
    RawHadoop;

    pfs: OptionKind::Path, "", None, false,
        "Directory that tide:/// stands for; by default that of TIDEPOOL_PFS, of the node, or of \
         the configuration file of the node.";
    socket: OptionKind::Path, "", None, false,
        "Socket of the node; by default TIDEPOOL_SOCKET, else that of a node of this user, else \
         root's.";
    fall_through: OptionKind::Switch, "", Some("true"), false,
        "Go on with the PFS where no node answers; without it file systems and files do not open.";
    short_circuit: OptionKind::Switch, "", Some("true"), false,
        "Read resident bytes from the node's memory without asking it.";
    read_mode: OptionKind::Choice(READ_MODES), "", None, true,
        "Read mode of files that are opened; by default that of the node's rule or mount.";
    write_mode: OptionKind::Choice(WRITE_MODES), "", None, true,
        "Write mode of files that are created; by default that of the node's rule or mount.";
    read_buffer_bytes: OptionKind::Bytes { min: 0, max: 64 * MIB, step: 1 }, "bytes",
        Some("64KiB"), true,
        "Reads shorter than this go through a buffer of this size; 0 has none.";
    write_buffer_bytes: OptionKind::Bytes { min: 4 * KIB, max: 64 * MIB, step: 4 * KIB }, "bytes",
        Some("1MiB"), true,
        "Writes are gathered up to this size.";
    split_bytes: OptionKind::Bytes { min: MIB, max: 64 * GIB, step: 1 }, "bytes",
        Some("128MiB"), true,
        "Size of a block as Hadoop sees it, and so of the splits of jobs.";
    host_names: OptionKind::Names, "", None, false,
        "Names of this host for schedulers, each as a worker here registers; by default blocks are \
         where nodes of the cluster have them, and without other nodes on `localhost`, which \
         schedulers take for no preference.";
    home_prefix: OptionKind::Path, "", Some("/user"), false,
        "Directory of tide:/// in which users have their home directories, and so their trash.";
    other_users: OptionKind::Choice(&["refuse", "warn", "allow"]), "", Some("refuse"), false,
        "What becomes of a file system for another user than that of the process, as by doAs: the \
         PFS would do everything as the user of the process.";
    stripe_bytes: OptionKind::Bytes { min: 4 * KIB, max: 4 * GIB, step: 4 * KIB }, "bytes", None,
        true, "Stripe size of files that are created, where the PFS lets users choose.";
    stripe_count: OptionKind::Count { min: 1, max: 65_535 }, "", None, true,
        "Data servers that a file that is created is spread over.";
    stripe_servers: OptionKind::Names, "", None, true,
        "Data servers for files that are created in order, as the PFS names them.";
    retry_interval_ms: OptionKind::Count { min: 1, max: 3_600_000 }, "ms", Some("500"), false,
        "Time after a failed attempt to reach the node until the next one.";
    request_timeout_ms: OptionKind::Count { min: 100, max: 86_400_000 }, "ms", Some("600000"),
        false, "How long one request to the node may take.";
}

/// The key of an option in a Hadoop configuration: `read_mode` is `fs.tide.read.mode`.
pub fn key(spec: &OptionSpec) -> String {
    format!("{KEY_PREFIX}{}", spec.name.replace('_', "."))
}

/// The option of a key, if there is one.
pub fn option_of_key(key: &str) -> Option<&'static OptionSpec> {
    let name = key.strip_prefix(KEY_PREFIX)?.replace('.', "_");
    HADOOP_OPTIONS.iter().find(|spec| spec.name == name)
}

/// Length of a split where no option says another, in bytes.
pub fn split_bytes_default() -> u64 {
    let spec = option_of_key("fs.tide.split.bytes").and_then(|spec| spec.default);
    let size = spec.and_then(|text| text.parse::<ByteSize>().ok());
    size.expect("the table has it, as a test checks").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_found_by_its_key_and_has_a_valid_default() {
        for spec in HADOOP_OPTIONS {
            let found = option_of_key(&key(spec)).map(|found| found.name);
            assert_eq!(found, Some(spec.name), "the key is unambiguous");
            assert_eq!(spec.default.map_or(Ok(()), |text| spec.kind.check(text)), Ok(()));
            assert!(spec.doc.ends_with('.'), "{} has a sentence of documentation", spec.name);
        }
        assert!(option_of_key("fs.tide.impl").is_none());
        assert!(split_bytes_default() >= MIB);
    }
}
