//! Layout backends against recordings: exact names and values of attributes, exact command lines,
//! and what the tools of the file systems printed. The file systems themselves are not needed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::runner::{CommandOutput, Runner};
use super::*;

/// Answers from recordings and notes what was asked.
#[derive(Clone, Default)]
struct Recorded {
    directory: bool,
    attributes: HashMap<&'static str, Vec<u8>>,
    /// Program to output; absent programs are not installed.
    programs: HashMap<&'static str, CommandOutput>,
    refuse_attributes: bool,
    /// Files of the client's own facts.
    texts: HashMap<&'static str, &'static str>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Recorded {
    fn printing(program: &'static str, output: &str) -> Self {
        let output = CommandOutput {
            succeeded: true,
            standard_output: output.to_owned(),
            standard_error: String::new(),
        };
        Recorded { programs: HashMap::from([(program, output)]), ..Recorded::default() }
    }

    fn with(name: &'static str, value: &[u8]) -> Self {
        Recorded { attributes: HashMap::from([(name, value.to_vec())]), ..Recorded::default() }
    }

    fn in_directory(mut self) -> Self {
        self.directory = true;
        self
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }
}

impl Runner for Recorded {
    fn get_xattr(&self, _: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
        if self.refuse_attributes {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
        Ok(self.attributes.get(name).cloned())
    }

    fn set_xattr(&self, _: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        if self.refuse_attributes {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
        self.log.lock().push(format!("{name}={}", value.escape_ascii()));
        Ok(())
    }

    fn run(&self, program: &str, arguments: &[OsString]) -> io::Result<CommandOutput> {
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        self.log.lock().push(format!("{program} {}", words.join(" ")));
        self.programs.get(program).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn path_of(&self, _: BorrowedFd<'_>) -> io::Result<PathBuf> {
        Ok(PathBuf::from("/pfs/project/a b"))
    }

    fn is_directory(&self, _: BorrowedFd<'_>) -> bool {
        self.directory
    }

    fn text_of(&self, path: &Path) -> io::Result<String> {
        let name = path.to_str().unwrap_or_default();
        self.texts.get(name).map(|text| (*text).to_owned()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn entries_of(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let below =
            self.texts.keys().filter_map(|name| Path::new(name).strip_prefix(directory).ok());
        let mut entries: Vec<_> =
            below.filter_map(|path| Some(directory.join(path.iter().next()?))).collect();
        entries.sort();
        entries.dedup();
        if entries.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(entries) }
    }

    fn open_parent(&self, _: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.log.lock().push("its directory".to_owned());
        io::stdin().as_fd().try_clone_to_owned()
    }
}

fn backend(fs_type: &str, recorded: &Recorded) -> LayoutBackend {
    let file_system = FileSystem {
        magic: 0,
        mount_id: 0,
        fs_type: fs_type.to_owned(),
        source: "server".to_owned(),
    };
    LayoutBackend::new(striping_for(&file_system), Box::new(recorded.clone()))
}

fn read(fs_type: &str, recorded: &Recorded) -> Layout {
    backend(fs_type, recorded).read(io::stdin().as_fd())
}

fn apply(fs_type: &str, recorded: &Recorded, hints: &LayoutHints) -> Result<LayoutOutcome> {
    backend(fs_type, recorded).apply(io::stdin().as_fd(), hints)
}

fn hints(size: Option<u64>, count: Option<u32>, servers: &[&str]) -> LayoutHints {
    LayoutHints {
        stripe_size_bytes: size,
        stripe_count: count,
        servers: servers.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// `getfattr -n lustre.lov` of a file made by `lfs setstripe --pool=pooltest --stripe-size 128k
/// --stripe-count=2` on a real Lustre.
const LUSTRE_V3: [u8; 96] = [
    0xd0, 0x0b, 0xd3, 0x0b, 0x01, 0x00, 0x00, 0x00, 0x32, 0x2b, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x04, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x02, 0x00, 0x00, 0x00,
    0x70, 0x6f, 0x6f, 0x6c, 0x74, 0x65, 0x73, 0x74, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x07, 0x0a, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc6, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
];

#[test]
fn lustre_attributes_are_read() {
    let layout = read("lustre", &Recorded::with("lustre.lov", &LUSTRE_V3));
    assert_eq!(layout.stripe_size_bytes, Some(131_072));
    assert_eq!(layout.stripe_count, Some(2));
    assert_eq!(layout.servers, ["OST0000", "OST0001"]);
    assert_eq!(layout.pool.as_deref(), Some("pooltest"));
    assert_eq!(
        layout.describe(),
        "lustre: 2 servers in turn, stripes of 128KiB: OST0000, OST0001; pool pooltest"
    );
}

#[test]
fn lustre_composites_show_the_component_in_use() {
    // Header, then two entries: the first has no objects yet.
    let mut bytes = vec![0u8; 32 + 2 * 48];
    bytes[..4].copy_from_slice(&0x0BD6_0BD0u32.to_le_bytes());
    bytes[14..16].copy_from_slice(&2u16.to_le_bytes());
    let empty = bytes.len();
    bytes.extend(&LUSTRE_V3[..48]);
    let used = bytes.len();
    bytes.extend(LUSTRE_V3);
    for (index, (offset, size)) in [(empty, 48usize), (used, 96)].into_iter().enumerate() {
        let entry = 32 + index * 48;
        bytes[entry + 24..entry + 28].copy_from_slice(&(offset as u32).to_le_bytes());
        bytes[entry + 28..entry + 32].copy_from_slice(&(size as u32).to_le_bytes());
    }
    let layout = read("lustre", &Recorded::with("lustre.lov", &bytes));
    assert_eq!(layout.servers, ["OST0000", "OST0001"]);
    assert_eq!(layout.note.as_deref(), Some("component 2 of 2 of a composite layout"));
}

#[test]
fn damaged_lustre_attributes_never_panic() {
    let mut state = 1u64;
    for length in 0..LUSTRE_V3.len() {
        read("lustre", &Recorded::with("lustre.lov", &LUSTRE_V3[..length]));
    }
    for _ in 0..2_000 {
        let mut bytes = LUSTRE_V3;
        bytes[2] = [0xd1, 0xd3, 0xd6][(state % 3) as usize];
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes[4 + (state >> 33) as usize % 92] = (state >> 56) as u8;
        }
        read("lustre", &Recorded::with("lustre.lov", &bytes));
    }
}

#[test]
fn lustre_tool_output_is_read_where_the_attribute_lacks() {
    let file = "/mnt/lustre/stripe-file\n\
        lmm_stripe_count:  4\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
        lmm_layout_gen:    0\nlmm_stripe_offset: 10\n\
        \tobdidx\t\t objid\t\t objid\t\t group\n\
        \t    10\t       3024641\t     0x2e2701\t             0\n\
        \t    11\t       3026034\t     0x2e2c72\t             0\n\
        \t    12\t       3021952\t     0x2e1c80\t             0\n\
        \t    13\t       3019616\t     0x2e1360\t             0\n";
    let recorded = Recorded::printing("lfs", file);
    let layout = read("lustre", &recorded);
    assert_eq!(layout.stripe_count, Some(4));
    assert_eq!(layout.servers, ["OST000a", "OST000b", "OST000c", "OST000d"]);
    assert_eq!(recorded.log(), ["lfs getstripe /pfs/project/a b"]);

    let directory = "stripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1\n";
    let recorded = Recorded::printing("lfs", directory).in_directory();
    let layout = read("lustre", &recorded);
    assert_eq!((layout.stripe_count, layout.stripe_size_bytes), (Some(1), Some(1 << 20)));
    assert_eq!(recorded.log(), ["lfs getstripe -d /pfs/project/a b"]);

    let mirrored = "/mnt/testfs/file1\n  lcm_layout_gen:    2\n  lcm_entry_count:   2\n    \
        lcme_id:             65537\n    lcme_flags:          init\n      \
        lmm_stripe_count:  2\n      \
        lmm_stripe_size:   4194304\n      lmm_pattern:       raid0\n      \
        lmm_pool:          flash\n      lmm_objects:\n      \
        - 0: { l_ost_idx: 1, l_fid: [0x100010000:0x2:0x0] }\n      \
        - 1: { l_ost_idx: 0, l_fid: [0x100000000:0x2:0x0] }\n";
    let layout = read("lustre", &Recorded::printing("lfs", mirrored));
    assert_eq!(layout.servers, ["OST0001", "OST0000"]);
    assert_eq!(layout.pool.as_deref(), Some("flash"));
}

#[test]
fn lustre_hints_become_the_attribute() {
    let recorded = Recorded::default();
    let outcome = apply("lustre", &recorded, &hints(Some(4 << 20), Some(8), &[]));
    assert_eq!(outcome.unwrap(), LayoutOutcome::Applied);
    let zeros = "\\x00".repeat(16);
    assert_eq!(
        recorded.log(),
        [format!(
            "lustre.lov=\\xd0\\x0b\\xd1\\x0b\\x01\\x00\\x00\\x00{zeros}\
             \\x00\\x00@\\x00\\x08\\x00\\xff\\xff"
        )]
    );
}

#[test]
fn lustre_targets_keep_their_order() {
    // Written, then read back by the reader that the recording above proves.
    let recorded = Recorded::default();
    apply("lustre", &recorded, &hints(Some(1 << 20), None, &["OST000a", "2", "OST0001"])).unwrap();
    let written = recorded.log()[0].clone();
    let value = unescape_ascii(written.strip_prefix("lustre.lov=").unwrap());
    assert_eq!(&value[..4], &0x0BD5_0BD0u32.to_le_bytes());
    let layout = read("lustre", &Recorded::with("lustre.lov", &value));
    assert_eq!(layout.servers, ["OST000a", "OST0002", "OST0001"]);
    assert_eq!(layout.stripe_count, Some(3));
}

fn unescape_ascii(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (byte, width) = match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'x')) => (u8::from_str_radix(&text[at + 2..at + 4], 16).unwrap(), 4),
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(other)) => (*other, 2),
            (byte, _) => (byte, 1),
        };
        out.push(byte);
        at += width;
    }
    out
}

#[test]
fn lustre_falls_back_to_its_tool() {
    let mut recorded = Recorded::printing("lfs", "");
    recorded.refuse_attributes = true;
    let wanted = hints(Some(4 << 20), Some(2), &["OST0003", "OST0001"]);
    assert_eq!(apply("lustre", &recorded, &wanted).unwrap(), LayoutOutcome::Applied);
    assert_eq!(recorded.log(), ["lfs setstripe -S 4194304 -c 2 -o 3,1 /pfs/project/a b"]);

    recorded.programs.clear();
    let error = apply("lustre", &recorded, &wanted).unwrap_err();
    assert_eq!(error.errno(), libc::ENOTSUP);
}

#[test]
fn lustre_refuses_what_it_cannot_mean() {
    let recorded = Recorded::default();
    for wrong in [
        hints(Some(100_000), None, &[]),
        hints(Some(8 << 30), None, &[]),
        hints(None, Some(70_000), &[]),
        hints(None, Some(3), &["OST0001"]),
        hints(None, None, &["server-one"]),
    ] {
        let error = apply("lustre", &recorded, &wrong).unwrap_err();
        assert_eq!(error.kind(), tidepool_proto::ErrorKind::InvalidInput, "{wrong:?}");
    }
    assert!(recorded.log().is_empty(), "nothing was set");
}

#[test]
fn ceph_layouts() {
    let text = b"stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data";
    let recorded = Recorded::with("ceph.file.layout", text);
    let layout = read("ceph", &recorded);
    assert_eq!((layout.stripe_size_bytes, layout.stripe_count), (Some(4 << 20), Some(1)));
    assert_eq!(layout.pool.as_deref(), Some("cephfs_data"));

    let recorded = Recorded::default().in_directory();
    assert!(read("fuse.ceph-fuse", &recorded).note.unwrap().contains("directory above"));
    let outcome = apply("ceph", &recorded, &hints(Some(1 << 20), Some(4), &["pool:fast"]));
    assert_eq!(outcome.unwrap(), LayoutOutcome::Applied);
    assert_eq!(
        recorded.log(),
        ["ceph.dir.layout=stripe_unit=1048576 stripe_count=4 object_size=4194304 pool=fast"]
    );

    // An object holds whole stripe units, and units are multiples of 64 KiB.
    let recorded = Recorded::with("ceph.file.layout", text);
    let outcome = apply("ceph", &recorded, &hints(Some(5 << 20 | 1), None, &[])).unwrap();
    assert!(matches!(outcome, LayoutOutcome::Partly(why) if why.contains("rounded")));
    assert_eq!(
        recorded.log(),
        ["ceph.file.layout=stripe_unit=5308416 stripe_count=1 object_size=5308416"]
    );
    recorded.log.lock().clear();
    let outcome = apply("ceph", &recorded, &hints(Some(3 << 20), None, &[])).unwrap();
    assert_eq!(outcome, LayoutOutcome::Applied);
    let text = "ceph.file.layout=stripe_unit=3145728 stripe_count=1 object_size=6291456";
    assert_eq!(recorded.log(), [text], "objects hold whole units");
    let outcome = apply("ceph", &recorded, &hints(None, Some(2), &["osd.3"])).unwrap();
    assert!(matches!(outcome, LayoutOutcome::Partly(why) if why.contains("hash")));
}

#[test]
fn orangefs_directory_hints() {
    let recorded = Recorded::default().in_directory();
    let outcome = apply("orangefs", &recorded, &hints(Some(1 << 20), Some(4), &[]));
    assert_eq!(outcome.unwrap(), LayoutOutcome::Applied);
    assert_eq!(
        recorded.log(),
        [
            "user.pvfs2.dist_name=simple_stripe\\x00",
            "user.pvfs2.dist_params=strip_size:1048576\\x00",
            "user.pvfs2.num_dfiles=00004\\x00",
        ]
    );
    let mut recorded = Recorded::with("user.pvfs2.num_dfiles", b"00004\0");
    recorded.attributes.insert("user.pvfs2.dist_params", b"strip_size:65536\0".to_vec());
    let layout = read("orangefs", &recorded);
    assert_eq!((layout.stripe_count, layout.stripe_size_bytes), (Some(4), Some(65_536)));
    assert_eq!(recorded.log(), ["its directory"], "files carry no hints");
    let text = layout.describe();
    assert!(text.contains("as its directory asks for new files"), "{text}");
    let of_directory = recorded.clone().in_directory();
    assert_eq!(read("orangefs", &of_directory).stripe_count, Some(4));

    let recorded = Recorded::printing("ofs_setdirhint", "").in_directory();
    let outcome = apply("orangefs", &recorded, &hints(None, None, &["2", "4", "6"]));
    assert_eq!(outcome.unwrap(), LayoutOutcome::Applied);
    assert_eq!(recorded.log(), ["ofs_setdirhint -l list -L 3:2:4:6 /pfs/project/a b"]);

    let file = apply("orangefs", &Recorded::default(), &hints(Some(1 << 20), None, &[])).unwrap();
    assert!(matches!(file, LayoutOutcome::Ignored(_)));
    let mut refusing = Recorded::default().in_directory();
    refusing.refuse_attributes = true;
    assert!(apply("orangefs", &refusing, &hints(Some(1 << 20), None, &[])).is_err());
    refusing.directory = false;
    let text = read("orangefs", &refusing).describe();
    assert!(text.contains("cannot be read here"), "{text}");
    assert!(read("orangefs", &Recorded::default()).describe().contains("no hints"));
}

#[test]
fn beegfs_patterns() {
    let printed = "Entry type: file\nEntryID: 0-5D285750-1\n\
        Metadata node: node1.beeg.local [ID: 1]\n\
        Stripe pattern details:\n+ Type: RAID0\n+ Chunksize: 512k\n\
        + Number of storage targets: desired: 2; actual: 2\n+ Storage targets:\n  \
        + 1 @ node1.beeg.local [ID: 1]\n  + 2 @ node2.beeg.local [ID: 2]\n\
        Chunk path: u0/0/r/root/0-5EC39809-1\nDentry path: 38/51/root/\n";
    let recorded = Recorded::printing("beegfs-ctl", printed);
    let layout = read("beegfs", &recorded);
    assert_eq!((layout.stripe_size_bytes, layout.stripe_count), (Some(512 << 10), Some(2)));
    assert_eq!(layout.servers, ["1 @ node1.beeg.local [ID: 1]", "2 @ node2.beeg.local [ID: 2]"]);
    assert_eq!(
        recorded.log(),
        [
            "beegfs entry info --retro --verbose /pfs/project/a b",
            "beegfs-ctl --getentryinfo --verbose /pfs/project/a b",
        ]
    );

    let eight = "Entry type: directory\nEntryID: root\nParentID:\nStripe pattern details:\n\
        + Type: RAID0\n+ Chunksize: 1M\n+ Number of storage targets: desired: 4\n\
        + Storage Pool: 1  (default)\n";
    let recorded = Recorded::printing("beegfs", eight).in_directory();
    let layout = read("beegfs", &recorded);
    assert_eq!((layout.stripe_size_bytes, layout.stripe_count), (Some(1 << 20), Some(4)));
    assert_eq!(layout.pool.as_deref(), Some("1  (default)"));

    recorded.log.lock().clear();
    let outcome = apply("beegfs", &recorded, &hints(Some(4 << 20), Some(4), &[])).unwrap();
    assert_eq!(outcome, LayoutOutcome::Applied);
    let line = "beegfs entry set --num-targets=4 --chunk-size=4096KiB /pfs/project/a b";
    assert_eq!(recorded.log(), [line]);

    let recorded = Recorded::printing("beegfs-ctl", "").in_directory();
    let outcome = apply("beegfs", &recorded, &hints(Some(3 << 20), Some(2), &[])).unwrap();
    assert!(matches!(outcome, LayoutOutcome::Partly(why) if why.contains("4194304")));
    let line = "beegfs-ctl --setpattern --numtargets=2 --chunksize=4096k /pfs/project/a b";
    assert_eq!(recorded.log()[1], line);

    let missing = apply("beegfs", &Recorded::default().in_directory(), &hints(None, Some(2), &[]));
    assert!(matches!(missing.unwrap(), LayoutOutcome::Ignored(why) if why.contains("beegfs-ctl")));
}

#[test]
fn file_systems_without_striping_say_so() {
    for fs_type in ["ext4", "gpfs", "fuse.glusterfs"] {
        let recorded = Recorded::default();
        let outcome = apply(fs_type, &recorded, &hints(Some(1 << 20), None, &[])).unwrap();
        assert!(matches!(outcome, LayoutOutcome::Ignored(_)), "{fs_type}");
        assert!(recorded.log().is_empty());
        assert!(read(fs_type, &recorded).describe().starts_with(fs_type));
        let nothing = apply(fs_type, &recorded, &LayoutHints::default()).unwrap();
        assert_eq!(nothing, LayoutOutcome::Applied);
    }
}

#[test]
fn moosefs_names_the_servers_of_chunks_and_takes_classes() {
    // Printed by version 3.0.117.
    let info = "/pfs/project/a b:\n\tchunk 0: 0000000000000009_00000001 / (id:9 ver:1)\n\
        \t\tcopy 1: 10.77.0.102:9422 (status:VALID)\n\
        \tchunk 1: 000000000000000A_00000001 / (id:10 ver:1)\n\
        \t\tcopy 1: 10.77.0.101:9422 (status:VALID)\n\
        \tchunk 2: 000000000000000B_00000001 / (id:11 ver:1)\n\
        \t\tcopy 1: 10.77.0.102:9422 (status:VALID)\n";
    let mut recorded = Recorded::printing("mfsfileinfo", info);
    let class = Recorded::printing("mfsgetsclass", "/pfs/project/a b: east\n");
    recorded.programs.extend(class.programs);
    let layout = read("fuse.mfs", &recorded);
    assert_eq!(
        layout.describe(),
        "fuse.mfs: stripes of 64MiB, placed one by one: on 2 servers; pool east"
    );
    let servers: Vec<_> = layout.map(0, 200 << 20, 9).into_iter().map(|it| it.server).collect();
    let server = |last: u8| Some(format!("10.77.0.{last}:9422"));
    assert_eq!(servers, [server(102), server(101), server(102), None]);
    assert_eq!(recorded.log(), ["mfsgetsclass /pfs/project/a b", "mfsfileinfo /pfs/project/a b"]);
    let directory = read("fuse.mfs", &recorded.clone().in_directory());
    assert_eq!((directory.pool.as_deref(), directory.stripes.len()), (Some("east"), 0));
    assert!(read("fuse.mfs", &Recorded::default()).describe().contains("mfsfileinfo"));

    let setting = Recorded::printing("mfssetsclass", "/pfs/project/a b: east\n");
    let outcome = apply("fuse.mfs", &setting, &hints(None, None, &["pool:east"])).unwrap();
    assert_eq!(outcome, LayoutOutcome::Applied);
    assert_eq!(setting.log(), ["mfssetsclass east /pfs/project/a b"]);
    let more = apply("fuse.mfs", &setting, &hints(Some(1 << 20), None, &["pool:east"])).unwrap();
    assert!(matches!(more, LayoutOutcome::Partly(why) if why.contains("64 MiB")));
    for servers in [&[][..], &["d1"], &["pool:-r"], &["pool:a", "pool:b"]] {
        let ignored = apply("fuse.mfs", &setting, &hints(Some(1 << 20), None, servers)).unwrap();
        assert!(matches!(ignored, LayoutOutcome::Ignored(_)), "{servers:?}");
    }
    let mut refusing = Recorded::printing("mfssetsclass", "no such storage class");
    refusing.programs.get_mut("mfssetsclass").unwrap().succeeded = false;
    let error = apply("fuse.mfs", &refusing, &hints(None, None, &["pool:east"])).unwrap_err();
    assert!(error.to_string().contains("mfsscadmin"), "{error}");
}

#[test]
fn ranges_map_to_stripes_and_servers() {
    let layout = Layout {
        fs_type: "lustre".to_owned(),
        stripe_size_bytes: Some(1 << 20),
        stripe_count: Some(2),
        servers: vec!["a".to_owned(), "b".to_owned()],
        ..Layout::default()
    };
    let parts = layout.map((4 << 20) - 10, (1 << 20) + 20, 100);
    let seen: Vec<_> = parts
        .iter()
        .map(|part| (part.stripe, part.offset, part.length, part.server.as_deref().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [(3, (4 << 20) - 10, 10, "b"), (4, 4 << 20, 1 << 20, "a"), (5, 5 << 20, 10, "b"),]
    );
    assert_eq!(layout.map(0, u64::MAX, 3).len(), 3);
    assert!(Layout::default().map(0, 100, 3).is_empty());
    assert_eq!(layout.stripe_of(3 << 20), Some(3));
}

#[test]
fn glusterfs_names_the_brick_of_a_file_or_the_length_of_shards() {
    let place = "(<DISTRIBUTE:vol-dht> <POSIX(/run/disk/brick):d2:/run/disk/brick/f>)\0";
    let whole = Recorded::with("glusterfs.pathinfo", place.as_bytes());
    let layout = read("fuse.glusterfs", &whole);
    assert_eq!(layout.describe(), "fuse.glusterfs: one server: d2:/run/disk/brick");
    let texts = [
        ("/pfs/.meta/graphs/active/vol-dht/type", "cluster/distribute\n"),
        ("/pfs/.meta/graphs/active/vol-shard/type", "features/shard\n"),
    ];
    let mut sharded = Recorded { texts: texts.into(), ..whole };
    assert_eq!(read("fuse.glusterfs", &sharded).stripe_size_bytes, Some(64 << 20));
    sharded.texts.insert("/pfs/.meta/graphs/active/vol-shard/options/shard-block-size", "16MB\n");
    let layout = read("fuse.glusterfs", &sharded);
    assert_eq!((layout.stripe_size_bytes, layout.stripe_count), (Some(16 << 20), None));
    assert!(read("fuse.glusterfs", &Recorded::default()).stripe_size_bytes.is_none());
}
