//! CephFS: the virtual attributes `ceph.dir.layout` and `ceph.file.layout`, one text of the form
//! `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data`. Objects are placed
//! by hash, so servers cannot be chosen; a data pool can.

use std::os::fd::BorrowedFd;

use tidepool_proto::{Error, Result};

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

/// Stripe units are multiples of this.
const STRIPE_UNIT_STEP_BYTES: u64 = 64 << 10;
const OBJECT_BYTES_DEFAULT: u64 = 4 << 20;

pub(crate) struct Ceph {
    pub fs_type: String,
}

/// The fields of a layout text.
#[derive(Debug, Default, PartialEq)]
struct Fields {
    stripe_unit_bytes: Option<u64>,
    stripe_count: Option<u32>,
    object_bytes: Option<u64>,
    pool: Option<String>,
}

fn parse(text: &str) -> Fields {
    let mut fields = Fields::default();
    for (name, value) in text.split_whitespace().filter_map(|field| field.split_once('=')) {
        match name {
            "stripe_unit" => fields.stripe_unit_bytes = value.parse().ok(),
            "stripe_count" => fields.stripe_count = value.parse().ok(),
            "object_size" => fields.object_bytes = value.parse().ok(),
            "pool" => fields.pool = Some(value.to_owned()),
            _ => {}
        }
    }
    fields
}

fn attribute(runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> &'static str {
    if runner.is_directory(descriptor) { "ceph.dir.layout" } else { "ceph.file.layout" }
}

fn current(runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Option<Fields> {
    let value = runner.get_xattr(descriptor, attribute(runner, descriptor)).ok()??;
    Some(parse(std::str::from_utf8(&value).ok()?.trim_end_matches('\0')))
}

impl Striping for Ceph {
    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let Some(fields) = current(runner, descriptor) else {
            return Layout::unknown(
                &self.fs_type,
                "no layout of its own: that of the nearest directory above, or the default",
            );
        };
        let object = fields.object_bytes.map(|bytes| format!("objects of {bytes} bytes, "));
        Layout {
            fs_type: self.fs_type.clone(),
            stripe_size_bytes: fields.stripe_unit_bytes,
            stripe_count: fields.stripe_count,
            pool: fields.pool,
            note: Some(format!("{}placed by hash", object.unwrap_or_default())),
            ..Layout::default()
        }
    }

    fn apply(
        &self,
        runner: &dyn Runner,
        descriptor: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        let now = current(runner, descriptor).unwrap_or_default();
        let unit = hints
            .stripe_size_bytes
            .or(now.stripe_unit_bytes)
            .unwrap_or(OBJECT_BYTES_DEFAULT)
            .max(1)
            .next_multiple_of(STRIPE_UNIT_STEP_BYTES);
        let count = hints.stripe_count.or(now.stripe_count).unwrap_or(1).max(1);
        // An object holds whole stripe units.
        let object = now.object_bytes.unwrap_or(OBJECT_BYTES_DEFAULT).max(unit);
        let object = object.next_multiple_of(unit);
        let mut text = format!("stripe_unit={unit} stripe_count={count} object_size={object}");
        let (pools, others): (Vec<_>, Vec<_>) =
            hints.servers.iter().partition(|server| server.starts_with("pool:"));
        if let Some(pool) = pools.first() {
            text += &format!(" pool={}", pool.trim_start_matches("pool:"));
        }
        runner.set_xattr(descriptor, attribute(runner, descriptor), text.as_bytes()).map_err(
            |error| {
                Error::pfs("setting a CephFS layout", error).remedy(
                    "the client needs the flag `p` in its capabilities, and a file must be empty",
                )
            },
        )?;
        let rounded = hints.stripe_size_bytes.is_some_and(|wanted| wanted != unit);
        if !others.is_empty() {
            return Ok(LayoutOutcome::Partly(
                "CephFS places objects by hash: servers cannot be chosen, only `pool:NAME`"
                    .to_owned(),
            ));
        }
        if rounded {
            return Ok(LayoutOutcome::Partly(format!(
                "the stripe size was rounded up to {unit} bytes: CephFS takes multiples of 64 KiB"
            )));
        }
        Ok(LayoutOutcome::Applied)
    }
}
