//! `tidepool top`: a live view of the node, or its samples as lines of JSON.

mod history;
mod view;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde::Serialize;
use tidepool_proto::files::FileOrder;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::TopArguments;
use crate::connection::Connection;
use history::{FileRate, History, Look, Rates};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output;

/// How often it is looked whether a signal asks for the end.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(200);

/// Where the looks come from.
struct Source {
    node: Connection,
    interval: Duration,
    files: u32,
    order: FileOrder,
}

impl Source {
    fn look(&self) -> Result<Look> {
        let files = self.node.files(self.order, self.files)?;
        Ok(Look { status: self.node.status()?, files, taken: Instant::now() })
    }
}

/// A look as a line of JSON.
#[derive(Serialize)]
struct LookLine<'a> {
    #[serde(flatten)]
    rates: Rates,
    files: &'a [FileRate],
}

/// Runs `top`.
pub fn top(arguments: &TopArguments) -> Result<Outcome> {
    let refuse = |detail: &str, remedy: &str| {
        Err(Error::new(ErrorKind::InvalidInput, "starting the live view", detail).remedy(remedy))
    };
    if !(0.1..=3600.0).contains(&arguments.interval) {
        return refuse("the interval is out of range", "choose 0.1 to 3600 seconds");
    }
    let interval = Duration::from_secs_f64(arguments.interval);
    let node = arguments.socket.connect();
    let mut source = Source { node, interval, files: arguments.files, order: arguments.by };
    let mut history = History::new(source.look()?);
    if let Some(count) = arguments.json {
        return print_lines(&source, &mut history, count);
    }
    if !std::io::stdout().is_terminal() {
        return refuse("standard output is no terminal", "use --json COUNT for lines of JSON");
    }
    let failed = |source| Error::pfs("drawing the live view", source);
    // Whatever ends it, the terminal is as it was.
    let interrupted = interruption::watch()?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let watched = watch(&mut terminal, &mut source, &mut history, &interrupted);
    ratatui::restore();
    watched.map_err(failed)?;
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::TimedOut, "watching the node", "interrupted"));
    }
    Ok(Outcome::Done)
}

fn print_lines(source: &Source, history: &mut History, count: u64) -> Result<Outcome> {
    for _ in 0..count {
        std::thread::sleep(source.interval);
        history.add(source.look()?);
        let line = LookLine { rates: history.latest(), files: history.files() };
        let line = serde_json::to_string(&line).map_err(|source| {
            Error::pfs("writing JSON", std::io::Error::other(source.to_string()))
        })?;
        output::line(&line);
    }
    Ok(Outcome::Done)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut Source,
    history: &mut History,
    interrupted: &AtomicBool,
) -> std::io::Result<()> {
    let mut trouble: Option<String> = None;
    let mut help = false;
    let mut next = Instant::now() + source.interval;
    loop {
        let choice = view::Choice { order: source.order, help };
        terminal.draw(|frame| view::draw(frame, history, choice, trouble.as_deref()))?;
        let left = next.saturating_duration_since(Instant::now());
        while event::poll(left.min(LOOK_FOR_SIGNALS))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupt = key.code == KeyCode::Char('c')
                        && key.modifiers.contains(KeyModifiers::CONTROL);
                    if !interrupt && (help || key.code == KeyCode::Char('?')) {
                        help = !help;
                        break;
                    }
                    if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                    let order = match key.code {
                        KeyCode::Char('m') => FileOrder::Resident,
                        KeyCode::Char('r') => FileOrder::Read,
                        _ => continue,
                    };
                    source.order = order;
                    next = Instant::now();
                    break;
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
        if interrupted.load(Ordering::Relaxed) {
            return Ok(());
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + source.interval;
        match source.look() {
            Ok(look) => {
                history.add(look);
                trouble = None;
            }
            Err(error) => trouble = Some(error.to_string()),
        }
    }
}
