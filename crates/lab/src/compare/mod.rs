//! `tidepool bench compare`: the same patterns by several ways in one interleaved run, side by side
//! with their spread. Leaves nothing behind on the PFS, on tmpfs or in the store, and judges
//! nothing: a busy machine changes figures, not the outcome.

pub mod arguments;
mod files;
mod report;
mod way;
mod ways;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_report::bustle::Watch;

use self::arguments::{CompareArguments, Pattern};
use self::files::{Files, MIB, SPARE_BYTES};
use self::report::{Report, Row};
use self::way::Way;
use crate::calibrate::{machine, volume};
use crate::mountain::own_node::{OwnNode, Scratch};
use tidepool_cli::connection::Connection;
use tidepool_cli::target::Roots;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption::{self, check};
use tidepool_terminal::output;

/// Smallest size that makes sense to time.
const SIZE_BYTES_MIN: u64 = MIB;
/// On the PFS at a time: the file that is read, those that are scanned, and one that is written.
const COPIES: u64 = 3;
/// Of them in the store as long as it is read from.
const COPIES_RESIDENT: u64 = 2;
const ALL: [Pattern; 4] = [Pattern::Sequential, Pattern::Random, Pattern::Scan, Pattern::Write];

/// What is measured. Fields drop in order: the node ends before its directory goes.
struct Site {
    connection: Connection,
    roots: Roots,
    own: Option<OwnNode>,
    _scratch: Option<Scratch>,
}

/// Runs `bench compare`.
pub fn compare(arguments: &CompareArguments) -> Result<Outcome> {
    let size_bytes = arguments.size.0;
    if size_bytes < SIZE_BYTES_MIN {
        return Err(Error::new(ErrorKind::InvalidInput, "reading --size", "it is less than 1MiB"));
    }
    let interrupted = interruption::watch()?;
    let before = machine::describe();
    let mut watch = Watch::start();
    let site = Site::open(arguments)?;
    let node = site.connection.status()?.process_id;
    if site.own.is_none() {
        watch.begin(node);
    }
    let patterns = if arguments.pattern.is_empty() { &ALL[..] } else { &arguments.pattern };
    let progress = progress(arguments);
    progress.set_message("writing files");
    let files = Files::create(&site.roots, &site.connection, size_bytes, &interrupted)?;
    progress.set_length((files.ways().len() * patterns.len()) as u64 * u64::from(arguments.rounds));
    let mut rows = Vec::new();
    for pattern in ALL.into_iter().filter(|pattern| patterns.contains(pattern)) {
        rows.extend(measure(&files, pattern, arguments.rounds, &interrupted, &progress)?);
    }
    progress.finish_and_clear();
    if site.own.is_none() {
        watch.finish(node);
    }
    let bustle = watch.end();
    let report = Report {
        load_after: bustle.load_at_end,
        bustle,
        machine: before,
        pfs_file_system: volume::file_system(&site.roots.pfs),
        size_bytes,
        rounds: arguments.rounds,
        rows,
        skipped: files.skipped.clone(),
    };
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        report.print();
    }
    Ok(Outcome::Done)
}

/// How far it is, on standard error where that is a terminal. Drawn between measurements only.
fn progress(arguments: &CompareArguments) -> ProgressBar {
    let progress = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:20} {pos} of {len}  {msg}");
    progress.set_style(style.expect("the template is valid"));
    if arguments.facts.json {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    progress
}

impl Site {
    /// Checks that there is room, before anything is written.
    fn open(arguments: &CompareArguments) -> Result<Site> {
        let bytes = arguments.size.0.saturating_mul(COPIES);
        let Some(pfs) = &arguments.pfs else {
            let connection = arguments.facts.socket.connect();
            let status = connection.status()?;
            let roots = Roots::of(&status);
            check_room(&roots.pfs, bytes)?;
            check_store(status.store.capacity_bytes, arguments.size.0)?;
            return Ok(Site { connection, roots, own: None, _scratch: None });
        };
        check_room(pfs, bytes)?;
        check_store(
            tidepool_daemon::machine::available_bytes().unwrap_or(u64::MAX) / 2,
            arguments.size.0,
        )?;
        let pfs = pfs
            .canonicalize()
            .map_err(|source| Error::pfs(format!("opening {}", pfs.display()), source))?;
        let scratch = Scratch::below(&pfs)?;
        let own = OwnNode::start(scratch.path(), bytes + SPARE_BYTES, true, &[])?;
        let roots = Roots { pfs: scratch.path().to_owned(), mount: own.mount().map(PathBuf::from) };
        Ok(Site { connection: own.connect(), roots, own: Some(own), _scratch: Some(scratch) })
    }
}

fn check_room(directory: &Path, bytes: u64) -> Result<()> {
    volume::check_room(directory, bytes, |most_bytes| {
        volume::at_most("--size", most_bytes / COPIES)
    })
}

fn check_store(room_bytes: u64, size_bytes: u64) -> Result<()> {
    let needed_bytes = size_bytes.saturating_mul(COPIES_RESIDENT).saturating_add(SPARE_BYTES);
    if needed_bytes <= room_bytes {
        return Ok(());
    }
    let (needed, room) = (output::size(needed_bytes), output::size(room_bytes));
    let detail = format!("{needed} of memory needed, {room} may be used");
    let remedy = match room_bytes.saturating_sub(SPARE_BYTES) / COPIES_RESIDENT / MIB * MIB {
        0..SIZE_BYTES_MIN => "give the node more memory, or end programs that use it".to_owned(),
        most_bytes => format!("give --size {} or less", output::size(most_bytes)),
    };
    Err(Error::new(ErrorKind::StoreFull, "preparing the comparison", detail).remedy(remedy))
}

/// Every way once a round, in an order that changes from round to round.
fn measure(
    files: &Files,
    pattern: Pattern,
    rounds: u32,
    interrupted: &AtomicBool,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    let ways = files.ways();
    let mut rates = vec![Vec::with_capacity(rounds as usize); ways.len()];
    for round in 0..rounds as usize {
        for turn in 0..ways.len() {
            check(interrupted)?;
            let index = (round + turn) % ways.len();
            progress.set_message(format!("{} by {}", pattern.name(), ways[index].name()));
            rates[index].push(ways::rate(files, ways[index], pattern, round as u64, interrupted)?);
            progress.inc(1);
        }
    }
    let of = |way: Way| ways.iter().position(|other| *other == way).map(|index| &rates[index]);
    let (tmpfs, bare_pfs) = (of(Way::Tmpfs), of(Way::BarePfs));
    let rows = ways.iter().zip(&rates);
    Ok(rows.map(|(way, rates)| Row::new(pattern, *way, rates, tmpfs, bare_pfs)).collect())
}
