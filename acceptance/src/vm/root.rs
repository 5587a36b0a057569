//! The root file system of the virtual machine: BusyBox, the product, what both need of the C
//! library, `fusermount3`, kernel modules and the tests, packed as an initial memory disk.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;
use crate::process;
use crate::suites;

/// For the volume, the mount, and swap that is compressed in memory.
const MODULES: [&str; 8] = [
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "fuse",
    "lzo_rle",
    "zram",
];
const USERS: &str = "root:x:0:0:root:/:/bin/sh\ntide:x:1000:1000:tide:/tmp:/bin/sh\n";
const GROUPS: &str = "root:x:0:\ntide:x:1000:\n";

/// Packs the root and returns the image.
pub fn build(
    directory: &Path,
    kernel: &Kernel,
    binary: &Path,
    tests: &[String],
) -> Result<PathBuf> {
    let fresh = tempfile::tempdir_in(directory)?;
    let root = fresh.path();
    for name in ["bin", "etc", "mnt/tide", "modules", "tests", "usr/bin", "lib64"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    let busybox = find("busybox")?;
    std::fs::copy(&busybox, root.join("bin/busybox"))?;
    let mut strip = process::command("strip", &["-o"]);
    process::read(strip.arg(root.join("bin/tidepool")).arg(binary))?;
    let helper = root.join("bin/fusermount3");
    std::fs::copy(find("fusermount3")?, &helper)?;
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o4755))?;
    for source in ["moments.c", "vm/reads.c", "vm/job.c"] {
        let source = suites::conformance(source);
        let name = source.file_stem().context("a source has a name")?;
        compile(&source, &root.join("bin").join(name))?;
    }
    for program in [binary, &helper] {
        copy_libraries(program, root)?;
    }
    for (number, module) in kernel.modules(&MODULES)?.iter().enumerate() {
        let name = module.file_name().context("a module has a name")?.to_string_lossy();
        std::fs::copy(module, root.join(format!("modules/{number:02}-{name}")))?;
    }
    let ours = suites::conformance("vm");
    for name in tests {
        std::fs::copy(super::script(name), root.join(format!("tests/{name}.sh")))?;
    }
    // Found by `.` in the search path.
    std::fs::copy(ours.join("common"), root.join("bin/common"))?;
    std::fs::copy(ours.join("init"), root.join("init"))?;
    std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))?;
    std::fs::write(root.join("etc/passwd"), USERS)?;
    std::fs::write(root.join("etc/group"), GROUPS)?;
    std::fs::write(root.join("etc/fuse.conf"), "user_allow_other\n")?;
    let image = directory.join("root.cpio");
    pack(root, &busybox, &image)?;
    Ok(image)
}

fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/bin".into(), "/sbin".into()]);
    let found = directories.map(|directory| directory.join(program)).find(|path| path.is_file());
    found.with_context(|| format!("`{program}` is not installed; `./x vm` installs it"))
}

/// Compiles a test program that needs no library.
pub fn compile(source: &Path, program: &Path) -> Result<()> {
    let mut compiler = process::command("cc", &["-O2", "-static", "-o"]);
    process::read(compiler.arg(program).arg(source)).map(drop)
}

/// The shared libraries of a program, at their places.
fn copy_libraries(program: &Path, root: &Path) -> Result<()> {
    let listed = process::read(process::command("ldd", &[""; 0]).arg(program))?;
    let paths: BTreeSet<&str> = listed
        .lines()
        .flat_map(|line| line.split_whitespace())
        .filter(|word| word.starts_with('/'))
        .collect();
    for path in paths {
        let place = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().context("a library is in a directory")?)?;
        std::fs::copy(path, &place).with_context(|| path.to_owned())?;
    }
    Ok(())
}

fn pack(root: &Path, busybox: &Path, image: &Path) -> Result<()> {
    symlink("bin/busybox", root.join("linuxrc"))?;
    let mut names = String::new();
    list(root, Path::new(""), &mut names)?;
    let list = root.with_extension("list");
    std::fs::write(&list, names)?;
    let output = std::fs::File::create(image)?;
    let mut archive = process::command(busybox, &["cpio", "-o", "-H", "newc"]);
    archive.current_dir(root).stdin(std::fs::File::open(&list)?).stdout(output);
    let status = archive.stderr(Stdio::null()).status().context("starting busybox")?;
    std::fs::remove_file(&list)?;
    if !status.success() {
        bail!("packing the root ended with {status}");
    }
    Ok(())
}

/// Names below a directory, each after the directory that it is in.
fn list(root: &Path, below: &Path, names: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        names.push_str(&format!("{}\n", name.display()));
        if entry.file_type()?.is_dir() {
            list(root, &name, names)?;
        }
    }
    Ok(())
}
