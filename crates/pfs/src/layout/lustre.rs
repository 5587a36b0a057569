//! Lustre: the attribute `lustre.lov`, a packed structure in the byte order of the client (all
//! clients that matter are little-endian), or the tool `lfs` where the attribute is refused.
//!
//! Format, from the documentation of `llapi_file_get_stripe`: magic and pattern (4 bytes each),
//! object id (16), stripe size (4), stripe count (2), first target or generation (2), with magic
//! V3 or SPECIFIC a pool name (16), then 24 bytes an object, whose last 4 are the target's index.
//! A composite layout has a header of 32 bytes and an entry of 48 for each of its components.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;

use tidepool_proto::{Error, ErrorKind, Result};

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const FS_TYPE: &str = "lustre";
const ATTRIBUTE: &str = "lustre.lov";
const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
const PATTERN_RAID0: u32 = 1;
/// Any target may be the first.
const ANY_TARGET: u16 = u16::MAX;
const HEADER_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const OBJECT_BYTES: usize = 24;
const COMPOSITE_HEADER_BYTES: usize = 32;
const COMPOSITE_ENTRY_BYTES: usize = 48;
/// Stripe sizes are multiples of this.
const STRIPE_STEP_BYTES: u64 = 64 << 10;

pub(crate) struct Lustre;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn target_name(index: u32) -> String {
    format!("OST{index:04x}")
}

/// Reads the attribute; `None` if it makes no sense.
fn decode(bytes: &[u8]) -> Option<Layout> {
    match u32_at(bytes, 0)? {
        MAGIC_COMPOSITE => decode_composite(bytes),
        _ => decode_component(bytes),
    }
}

/// Reads a layout that is not composite: composites hold no composites.
fn decode_component(bytes: &[u8]) -> Option<Layout> {
    match u32_at(bytes, 0)? {
        MAGIC_V1 => decode_plain(bytes, HEADER_BYTES),
        MAGIC_V3 | MAGIC_SPECIFIC => {
            let mut layout = decode_plain(bytes, HEADER_BYTES + POOL_BYTES)?;
            let name = bytes.get(HEADER_BYTES..HEADER_BYTES + POOL_BYTES)?;
            let name = String::from_utf8_lossy(name);
            let name = name.trim_end_matches('\0');
            layout.pool = (!name.is_empty()).then(|| name.to_owned());
            Some(layout)
        }
        _ => None,
    }
}

fn decode_plain(bytes: &[u8], objects_at: usize) -> Option<Layout> {
    let count = u16_at(bytes, 28)?;
    let servers = bytes
        .get(objects_at..)?
        .chunks_exact(OBJECT_BYTES)
        .take(usize::from(count))
        .map(|object| u32_at(object, 20).map(target_name))
        .collect::<Option<Vec<_>>>()?;
    // A count of all ones: as many as there are.
    Some(Layout {
        fs_type: FS_TYPE.to_owned(),
        stripe_size_bytes: Some(u64::from(u32_at(bytes, 24)?)).filter(|size| *size > 0),
        stripe_count: (count != u16::MAX && count != 0).then_some(u32::from(count)),
        servers,
        ..Layout::default()
    })
}

fn decode_composite(bytes: &[u8]) -> Option<Layout> {
    let count = usize::from(u16_at(bytes, 14)?);
    let component = |index: usize| {
        let entry = COMPOSITE_HEADER_BYTES + index * COMPOSITE_ENTRY_BYTES;
        let (offset, size) =
            (u32_at(bytes, entry + 24)? as usize, u32_at(bytes, entry + 28)? as usize);
        decode_component(bytes.get(offset..offset.checked_add(size)?)?)
    };
    // The first component with objects tells most; those not yet in use have none.
    let components: Vec<Layout> = (0..count).map_while(component).collect();
    let shown = components.iter().position(|layout| !layout.servers.is_empty()).unwrap_or(0);
    let mut layout = components.into_iter().nth(shown)?;
    layout.note = Some(format!("component {} of {count} of a composite layout", shown + 1));
    Some(layout)
}

/// Reads what `lfs getstripe` printed, of a file or (with `-d`) of a directory.
fn parse_getstripe(text: &str) -> Layout {
    let mut layout = Layout { fs_type: FS_TYPE.to_owned(), ..Layout::default() };
    let mut in_objects = false;
    let mut words = Vec::new();
    for line in text.lines().map(str::trim) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.first() == Some(&"obdidx") {
            in_objects = true;
        } else if in_objects && fields.len() >= 4 {
            layout.servers.extend(fields[0].parse().ok().map(target_name));
        } else if let Some((_, rest)) = line.split_once("l_ost_idx:") {
            let index = rest.trim_start().split(',').next().and_then(|text| text.parse().ok());
            layout.servers.extend(index.map(target_name));
        }
        words.extend(fields);
    }
    for pair in words.windows(2) {
        match pair[0].trim_start_matches("lmm_") {
            "stripe_count:" if layout.stripe_count.is_none() => {
                layout.stripe_count = pair[1].parse().ok().filter(|count| *count > 0);
            }
            "stripe_size:" if layout.stripe_size_bytes.is_none() => {
                layout.stripe_size_bytes = pair[1].parse().ok();
            }
            "pool:" if layout.pool.is_none() => layout.pool = Some(pair[1].to_owned()),
            _ => {}
        }
    }
    layout
}

/// The target's index in `OST0003` (hexadecimal, as Lustre prints it) or `3`.
fn target_index(name: &str) -> Option<u32> {
    let upper = name.to_ascii_uppercase();
    match upper.strip_prefix("OST") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => upper.parse().ok(),
    }
}

fn encode(size: u32, count: u16, targets: &[u32], pool: Option<&str>) -> Vec<u8> {
    let magic = match (targets.is_empty(), pool) {
        (false, _) => MAGIC_SPECIFIC,
        (true, Some(_)) => MAGIC_V3,
        (true, None) => MAGIC_V1,
    };
    let first = targets.first().map_or(ANY_TARGET, |index| *index as u16);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + POOL_BYTES + targets.len() * OBJECT_BYTES);
    bytes.extend(magic.to_le_bytes());
    bytes.extend(PATTERN_RAID0.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    if magic != MAGIC_V1 {
        let mut name = [0; POOL_BYTES];
        let pool = pool.unwrap_or_default().as_bytes();
        let length = pool.len().min(POOL_BYTES - 1);
        name[..length].copy_from_slice(&pool[..length]);
        bytes.extend(name);
    }
    for index in targets {
        bytes.extend([0; OBJECT_BYTES - 4]);
        bytes.extend(index.to_le_bytes());
    }
    bytes
}

fn invalid(detail: String, remedy: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "setting a Lustre layout", detail).remedy(remedy)
}

/// Hints in the terms of Lustre.
struct Wanted {
    size: u32,
    count: u16,
    targets: Vec<u32>,
    pool: Option<String>,
}

fn wanted(hints: &LayoutHints) -> Result<Wanted> {
    let size = hints.stripe_size_bytes.unwrap_or(0);
    let size = u32::try_from(size)
        .ok()
        .filter(|size| u64::from(*size).is_multiple_of(STRIPE_STEP_BYTES))
        .ok_or_else(|| {
            invalid(format!("a stripe size of {size} bytes"), "multiples of 64 KiB below 4 GiB")
        })?;
    let pool = hints.servers.iter().find_map(|name| name.strip_prefix("pool:"));
    let mut targets = Vec::new();
    for name in hints.servers.iter().filter(|name| !name.starts_with("pool:")) {
        targets.push(target_index(name).ok_or_else(|| {
            invalid(format!("`{name}` names no target"), "names are OST0003, 3 or pool:NAME")
        })?);
    }
    let count = match (hints.stripe_count, targets.len()) {
        (Some(count), 0) => count,
        (Some(count), listed) if count as usize != listed => {
            return Err(invalid(
                format!("a stripe count of {count} with {listed} targets"),
                "give as many targets as stripes, or no count",
            ));
        }
        (_, listed) => listed as u32,
    };
    let count = u16::try_from(count)
        .map_err(|_| invalid(format!("a stripe count of {count}"), "at most 65,535"))?;
    Ok(Wanted { size, count, targets, pool: pool.map(str::to_owned) })
}

/// Arguments of `lfs setstripe`, without the path.
fn setstripe_arguments(wanted: &Wanted) -> Vec<OsString> {
    let mut arguments = vec!["setstripe".to_owned()];
    if wanted.size > 0 {
        arguments.extend(["-S".to_owned(), wanted.size.to_string()]);
    }
    if wanted.count > 0 {
        arguments.extend(["-c".to_owned(), wanted.count.to_string()]);
    }
    if let Some(pool) = &wanted.pool {
        arguments.extend(["-p".to_owned(), pool.clone()]);
    }
    if !wanted.targets.is_empty() {
        let list: Vec<String> = wanted.targets.iter().map(u32::to_string).collect();
        arguments.extend(["-o".to_owned(), list.join(",")]);
    }
    arguments.into_iter().map(OsString::from).collect()
}

impl Striping for Lustre {
    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let value = runner.get_xattr(descriptor, ATTRIBUTE).ok().flatten();
        if let Some(layout) = value.as_deref().and_then(decode) {
            return layout;
        }
        let Ok(path) = runner.path_of(descriptor) else {
            return Layout::unknown(FS_TYPE, "the file has no name");
        };
        let mut arguments: Vec<OsString> = vec!["getstripe".into()];
        if runner.is_directory(descriptor) {
            arguments.push("-d".into());
        }
        arguments.push(path.into());
        match runner.run("lfs", &arguments) {
            Ok(output) if output.succeeded => parse_getstripe(&output.standard_output),
            _ => Layout::unknown(FS_TYPE, "the default of the file system"),
        }
    }

    fn apply(
        &self,
        runner: &dyn Runner,
        descriptor: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        let wanted = wanted(hints)?;
        let bytes = encode(wanted.size, wanted.count, &wanted.targets, wanted.pool.as_deref());
        let Err(refused) = runner.set_xattr(descriptor, ATTRIBUTE, &bytes) else {
            return Ok(LayoutOutcome::Applied);
        };
        let path = runner
            .path_of(descriptor)
            .map_err(|error| Error::pfs("finding the path of a file", error))?;
        let mut arguments = setstripe_arguments(&wanted);
        arguments.push(path.into());
        match runner.run("lfs", &arguments) {
            Ok(output) if output.succeeded => Ok(LayoutOutcome::Applied),
            Ok(output) => Err(Error::new(
                ErrorKind::Pfs,
                "setting a Lustre layout",
                output.standard_error.trim(),
            )
            .caused_by(refused)),
            Err(_) => Err(Error::pfs("setting a Lustre layout", refused)
                .remedy("install the tool `lfs`, or check that the file is new and empty")),
        }
    }
}
