//! libfuse's own pass-through example on a directory, as a reference: the cost of a mount that
//! caches nothing and promises nothing. Compiled here from the sources in libfuse's package.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cleanup::{self, Guard};
use crate::loop_volume::{is_mounted, unmount_hard};
use crate::process;
use crate::scratch::Scratch;

const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// The mounted example.
#[derive(Debug)]
pub struct PassThrough {
    /// Where it is mounted.
    pub mount: PathBuf,
    // Dropped in this order.
    _unmount: Guard,
    _place: Scratch,
}

impl PassThrough {
    /// Mounts it over `source`, so that it asks the directory each time, as the node does.
    pub fn mount(source: &Path) -> Result<Self> {
        let place = Scratch::short()?;
        let program = place.path().join("passthrough_ll");
        compile(&program).context("the example of libfuse; its package is libfuse3-dev")?;
        let mount = place.path().join("mount");
        std::fs::create_dir(&mount)?;
        let options = format!("allow_other,cache=never,source={}", source.display());
        // It holds a descriptor of every file that the kernel knows of.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let most = most.map_or("unlimited".to_owned(), |most| most.to_string());
        let mut start = process::command("prlimit", &[format!("--nofile={most}:{most}")]);
        start.arg(&program).args(["-o", &options]).arg(&mount);
        let unmount = cleanup::guard({
            let mount = mount.clone();
            move || {
                if is_mounted(&mount) {
                    unmount_hard(&mount);
                }
            }
        });
        process::read(&mut start)?;
        anyhow::ensure!(is_mounted(&mount), "libfuse's example did not mount");
        Ok(PassThrough { mount, _unmount: unmount, _place: place })
    }
}

fn compile(program: &Path) -> Result<()> {
    let flags =
        process::read(&mut process::command("pkg-config", &["--cflags", "--libs", "fuse3"]));
    let mut compiler = process::command("cc", &["-O2", SOURCE, "-o"]);
    compiler.arg(program).args(flags?.split_whitespace());
    process::read(&mut compiler).map(drop)
}
