//! Mounts a directory over one of the services of the tests until it is unmounted, so that suites
//! written elsewhere can be run on the mount alone. Not part of the product.
//!
//! `mount_plain bypass|memory|direct PFS_DIRECTORY MOUNT_POINT [THREADS]`; `direct` is `memory`
//! without passthrough.

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::sync::Arc;

use tidepool_fake_node::FakeService;
use tidepool_fuse::MountConfig;
use tidepool_proto::FileService;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, service, pfs, mount_point, rest @ ..] = &arguments[..] else {
        return Err("usage: mount_plain bypass|memory|direct PFS_DIRECTORY MOUNT_POINT".into());
    };
    let service: Arc<dyn FileService> = match service.as_str() {
        "bypass" => FakeService::bypass(),
        "memory" => FakeService::memory(),
        "direct" => FakeService::memory_without_pins(),
        other => return Err(format!("no service `{other}`").into()),
    };
    let pfs = PathBuf::from(pfs).canonicalize()?;
    let mut config =
        MountConfig::new(support::open_directory(&pfs), pfs.clone(), PathBuf::from(mount_point));
    if let [threads, ..] = rest {
        config.threads = threads.parse()?;
    }
    let mount = tidepool_fuse::mount(service, config)?;
    for note in mount.notes() {
        println!("{note}");
    }
    mount.wait()?;
    Ok(())
}
