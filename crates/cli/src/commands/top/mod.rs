//! `tidepool top`: a live view of the node, or its samples as lines of JSON.

mod history;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::TopArguments;
use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;
use history::History;

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
    let mut history = History::new(node.status()?, Instant::now());
    if let Some(count) = arguments.json {
        return print_lines(&node, &mut history, interval, count);
    }
    if !std::io::stdout().is_terminal() {
        return refuse("standard output is no terminal", "use --json COUNT for lines of JSON");
    }
    let failed = |source| Error::pfs("drawing the live view", source);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let watched = watch(&mut terminal, &node, &mut history, interval);
    ratatui::restore();
    watched.map_err(failed)?;
    Ok(Outcome::Done)
}

fn print_lines(
    node: &Connection,
    history: &mut History,
    interval: Duration,
    count: u64,
) -> Result<Outcome> {
    for _ in 0..count {
        std::thread::sleep(interval);
        history.add(node.status()?, Instant::now());
        let line = serde_json::to_string(&history.latest()).map_err(|source| {
            Error::pfs("writing JSON", std::io::Error::other(source.to_string()))
        })?;
        output::line(&line);
    }
    Ok(Outcome::Done)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    node: &Connection,
    history: &mut History,
    interval: Duration,
) -> std::io::Result<()> {
    let mut trouble: Option<String> = None;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view::draw(frame, history, trouble.as_deref()))?;
        while event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupt = key.code == KeyCode::Char('c')
                        && key.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + interval;
        match node.status() {
            Ok(status) => {
                history.add(status, Instant::now());
                trouble = None;
            }
            Err(error) => trouble = Some(error.to_string()),
        }
    }
}
