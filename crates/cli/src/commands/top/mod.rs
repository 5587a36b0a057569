//! `tidepool top`: a live view of the node or of all nodes of its cluster, or the samples as lines
//! of JSON.

mod cluster;
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
use cluster::ClusterView;
use history::{FileRate, History, Look, Rates};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output;

/// How often it is looked whether a signal asks for the end.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(200);

/// What is looked at again and again, and drawn.
trait Live {
    /// Looks once more.
    fn look(&mut self) -> Result<()>;

    /// Draws the latest look; `trouble` is why there is no newer one.
    fn draw(&self, frame: &mut ratatui::Frame<'_>, help: bool, trouble: Option<&str>);

    /// Answers a key. Whether the next look is to be taken now.
    fn key(&mut self, key: KeyCode) -> bool;

    /// The latest look as a line of JSON.
    fn line(&self) -> serde_json::Result<String>;
}

/// One node over time.
struct NodeView {
    node: Connection,
    files: u32,
    order: FileOrder,
    history: History,
}

impl NodeView {
    fn new(arguments: &TopArguments) -> Result<Self> {
        let node = arguments.socket.connect();
        let (files, order) = (arguments.files, arguments.by);
        let history = History::new(look(&node, order, files)?);
        Ok(NodeView { node, files, order, history })
    }
}

fn look(node: &Connection, order: FileOrder, count: u32) -> Result<Look> {
    let files = node.files(order, count)?;
    Ok(Look { status: node.status()?, files, taken: Instant::now() })
}

impl Live for NodeView {
    fn look(&mut self) -> Result<()> {
        self.history.add(look(&self.node, self.order, self.files)?);
        Ok(())
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>, help: bool, trouble: Option<&str>) {
        let choice = view::Choice { order: self.order, help };
        view::draw(frame, &self.history, choice, trouble);
    }

    fn key(&mut self, key: KeyCode) -> bool {
        self.order = match key {
            KeyCode::Char('m') => FileOrder::Resident,
            KeyCode::Char('r') => FileOrder::Read,
            _ => return false,
        };
        true
    }

    fn line(&self) -> serde_json::Result<String> {
        let (rates, files) = (self.history.latest(), self.history.files());
        serde_json::to_string(&LookLine { rates, files })
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
    let mut live: Box<dyn Live> = match arguments.cluster {
        true => Box::new(ClusterView::new(arguments.socket.connect())?),
        false => Box::new(NodeView::new(arguments)?),
    };
    if let Some(count) = arguments.json {
        return print_lines(&mut *live, interval, count);
    }
    if !std::io::stdout().is_terminal() {
        return refuse("standard output is no terminal", "use --json COUNT for lines of JSON");
    }
    let failed = |source| Error::pfs("drawing the live view", source);
    // Whatever ends it, the terminal is as it was.
    let interrupted = interruption::watch()?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let watched = watch(&mut terminal, &mut *live, interval, &interrupted);
    ratatui::restore();
    watched.map_err(failed)?;
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::TimedOut, "watching the node", "interrupted"));
    }
    Ok(Outcome::Done)
}

fn print_lines(live: &mut dyn Live, interval: Duration, count: u64) -> Result<Outcome> {
    for _ in 0..count {
        std::thread::sleep(interval);
        live.look()?;
        let line = live.line().map_err(|source| {
            Error::pfs("writing JSON", std::io::Error::other(source.to_string()))
        })?;
        output::line(&line);
    }
    Ok(Outcome::Done)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    live: &mut dyn Live,
    interval: Duration,
    interrupted: &AtomicBool,
) -> std::io::Result<()> {
    let mut trouble: Option<String> = None;
    let mut help = false;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| live.draw(frame, help, trouble.as_deref()))?;
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
                    if live.key(key.code) {
                        next = Instant::now();
                        break;
                    }
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
        next = Instant::now() + interval;
        trouble = live.look().err().map(|error| error.to_string());
    }
}
