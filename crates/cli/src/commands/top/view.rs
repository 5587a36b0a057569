//! How the live view looks. Draws; asks nothing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Gauge, Paragraph, Row, Sparkline, Table};
use tidepool_proto::Level;
use tidepool_proto::admin::Status;
use tidepool_proto::control::ALARMS;
use tidepool_proto::files::FileOrder;

use super::history::{FileRate, History, Rates};
use crate::output::{count, duration, percent, share, size};

/// Width of names before the curves.
const NAME_COLUMNS: u16 = 38;

fn colour(level: Level) -> Color {
    match level {
        Level::Mapped => Color::Green,
        Level::Store => Color::Cyan,
        Level::Peer => Color::Blue,
        Level::Buffer => Color::Magenta,
        Level::Pfs => Color::Yellow,
    }
}

/// What a viewer chose to see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    /// Which files come first.
    pub order: FileOrder,
    /// Whether the keys are explained.
    pub help: bool,
}

/// Lines of a box with its border, for the traffic and for the head of the files and two of them.
const TRAFFIC_LINES: u16 = 7;
const FILES_LINES_MIN: u16 = 5;

/// Draws the latest look at the node; `trouble` is why there is no newer one. Where the window is
/// low, the files go before the traffic, and what is wrong with the node before both.
pub fn draw(frame: &mut Frame<'_>, history: &History, choice: Choice, trouble: Option<&str>) {
    let notes = history.status().degraded.len().min(4) as u16;
    let series = series(history);
    let levels = series.len().max(1) as u16 + 2;
    let area = frame.area();
    let left = area.height.saturating_sub(2 + 3 + levels + notes + 1);
    let traffic = if left >= TRAFFIC_LINES + FILES_LINES_MIN { TRAFFIC_LINES } else { 0 };
    let [head, gauges, levels, traffic, degraded, files, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(levels),
        Constraint::Length(traffic),
        Constraint::Length(notes),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, history.status());
    draw_gauges(frame, gauges, history);
    draw_levels(frame, levels, history, &series);
    draw_traffic(frame, traffic, history.status(), &history.latest());
    let lines =
        history.status().degraded.iter().map(|note| Line::from(format!("degraded: {note}")));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).yellow(), degraded);
    draw_files(frame, files, history.files(), choice.order);
    let foot_line = match trouble {
        Some(trouble) => Line::from(trouble.to_owned()).red(),
        None => Line::from("q quit  ? help  files by: m memory, r reads").dim(),
    };
    frame.render_widget(foot_line, foot);
    if choice.help {
        draw_help(frame, area);
    }
}

/// As narrow as a window of 60 columns.
const HELP: [&str; 12] = [
    "q, Esc   quit",
    "m, r     files: most bytes in memory or most read first",
    "?        this help",
    "",
    "kernel   cached files that the kernel reads by itself;",
    "         each open counts once, with the file's length",
    "mapped   read by programs from the node's memory",
    "store    sent by the node from its memory",
    "buffer   from a buffer of the client library",
    "pfs      from the PFS: not cached",
    "In a low window the boxes of traffic and files go first.",
    "All figures: tidepool status; of a file: explain.",
];

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let wide = HELP.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 2;
    let (width, height) = (wide.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let place = Rect { x: area.x + x, y: area.y + y, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" any key closes this ");
    frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()).block(block), place);
}

/// Where bytes came from.
struct Series {
    name: &'static str,
    colour: Color,
    total_bytes: u64,
    rate: fn(&Rates, Option<Level>) -> u64,
    level: Option<Level>,
}

/// Those that served anything.
fn series(history: &History) -> Vec<Series> {
    let status = history.status();
    let kernel = Series {
        name: "kernel",
        colour: Color::LightGreen,
        total_bytes: status.transfers.passthrough_lent_bytes,
        rate: |rates, _| rates.kernel_bytes_per_s,
        level: None,
    };
    let levels = Level::ALL.map(|level| Series {
        name: level.name(),
        colour: colour(level),
        total_bytes: status.served.get(level),
        rate: |rates, level| level.map_or(0, |level| rates.served_bytes_per_s.get(level)),
        level: Some(level),
    });
    [kernel].into_iter().chain(levels).filter(|series| series.total_bytes > 0).collect()
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let title = Line::from(vec![
        Span::styled("tidepool", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "  node {}  {} ({})  up {}",
            status.process_id,
            status.pfs,
            status.pfs_type,
            duration(status.uptime_s)
        )),
    ]);
    let mount = status.mount.as_deref().unwrap_or("not mounted");
    let second = Line::from(format!(
        "{mount}  policy {}  read {}  write {}  {}  {}",
        status.store.policy,
        status.read_mode,
        status.write_mode,
        count(status.open_files, "open file"),
        count(status.clients, "client")
    ));
    frame.render_widget(Paragraph::new(vec![title, second.dim()]), area);
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(area);
    let store = &history.status().store;
    let memory = Gauge::default()
        .block(Block::bordered().title(format!(" memory, {} pinned ", size(store.pinned_bytes))))
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(share(store.resident_bytes, store.capacity_bytes).clamp(0.0, 1.0))
        .label(format!("{} of {}", size(store.resident_bytes), size(store.capacity_bytes)));
    frame.render_widget(memory, left);
    let total = history.status().hit_ratio;
    let total_text = total
        .map_or("no reads yet".to_owned(), |ratio| format!("since start {:.1}%", ratio * 100.0));
    let now = history.latest().hit_ratio;
    let label = now.map_or("idle".to_owned(), |ratio| format!("now {:.1}%", ratio * 100.0));
    let hits = Gauge::default()
        .block(Block::bordered().title(format!(" hit ratio, {total_text} ")))
        .gauge_style(Style::new().fg(Color::Green))
        .ratio(now.or(total).unwrap_or(0.0).clamp(0.0, 1.0))
        .label(label);
    frame.render_widget(hits, right);
}

fn draw_levels(frame: &mut Frame<'_>, area: Rect, history: &History, series: &[Series]) {
    let block = Block::bordered().title(" bytes served by level ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if series.is_empty() {
        frame.render_widget(Line::from("nothing was read yet").dim(), inner);
        return;
    }
    let curve_columns = usize::from(inner.width.saturating_sub(NAME_COLUMNS));
    let curve =
        |series: &Series| history.curve(curve_columns, |rates| (series.rate)(rates, series.level));
    let curves: Vec<Vec<u64>> = series.iter().map(curve).collect();
    // One scale for all, so that the curves can be compared.
    let highest = curves.iter().flatten().copied().max().unwrap_or(0).max(1);
    let total_bytes = series.iter().map(|series| series.total_bytes).sum();
    for ((series, curve), row) in series.iter().zip(&curves).zip(inner.rows()) {
        let [name, line] =
            Layout::horizontal([Constraint::Length(NAME_COLUMNS), Constraint::Min(0)]).areas(row);
        let rate = (series.rate)(&history.latest(), series.level);
        let text = format!(
            "{:<6} {:>10}/s {:>10} {:>6}",
            series.name,
            size(rate),
            size(series.total_bytes),
            percent(series.total_bytes, total_bytes)
        );
        frame.render_widget(Line::from(text).fg(series.colour), name);
        let sparkline =
            Sparkline::default().data(curve).max(highest).style(Style::new().fg(series.colour));
        frame.render_widget(sparkline, line);
    }
}

fn draw_files(frame: &mut Frame<'_>, area: Rect, files: &[FileRate], order: FileOrder) {
    let title = format!(" files, most {order} first ");
    let header = Row::new(["resident", "of", "read", "per second", "open", "", "file"]).dim();
    let rows = files.iter().map(|FileRate { file, read_bytes_per_s }| {
        let kept = match (file.pinned, file.memory_only) {
            (_, true) => "memory only",
            (true, false) => "pinned",
            (false, false) => "",
        };
        Row::new([
            size(file.resident_bytes),
            size(file.size_bytes),
            size(file.read_bytes),
            read_bytes_per_s.map(size).unwrap_or_default(),
            file.open_handles.to_string(),
            kept.to_owned(),
            file.path.clone(),
        ])
    });
    let widths = [9, 9, 9, 10, 4, 11].map(Constraint::Length).into_iter();
    let widths = widths.chain([Constraint::Min(10)]);
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn control_words(status: &Status, rates: &Rates) -> String {
    let (Some(demand), Some(target)) = (rates.demand_bytes, rates.target_bytes) else {
        let why = if status.control.enabled { "no controller governs" } else { "off" };
        return format!("control   {why}");
    };
    let alarms = ALARMS.iter().filter(|(name, _)| status.control.has_alarm(name));
    let alarms: Vec<String> = alarms.map(|(name, _)| format!("  {name}!")).collect();
    format!("control   demand {}, target {}{}", size(demand), size(target), alarms.concat())
}

fn draw_traffic(frame: &mut Frame<'_>, area: Rect, status: &Status, rates: &Rates) {
    let block = Block::bordered().title(" transfers ");
    let age = status.dirty_age_ms.map(|age| format!(", oldest {age} ms")).unwrap_or_default();
    let lines = vec![
        Line::from(format!(
            "PFS       {:>12}/s read  {:>12}/s written",
            size(rates.pfs_read_bytes_per_s),
            size(rates.pfs_written_bytes_per_s)
        )),
        Line::from(format!(
            "programs  {:>12}/s written  {} failed since the start",
            size(rates.written_bytes_per_s),
            size(status.failed_bytes)
        )),
        Line::from(format!(
            "store     {}, {}, {} blocks/s evicted",
            count(status.store.segments, "segment"),
            count(status.store.small_files, "packed file"),
            rates.evicted_blocks_per_s
        )),
        Line::from(format!(
            "unwritten {} under way to the PFS{age}; {} in memory only",
            size(status.dirty_bytes),
            size(status.memory_only_bytes)
        )),
        Line::from(control_words(status, rates)),
    ];
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::super::history::Look;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};
    use tidepool_proto::BytesByLevel;
    use tidepool_proto::control::ControlReport;
    use tidepool_proto::files::CachedFile;

    fn drawn(width: u16, height: u16, trouble: Option<&str>) -> String {
        drawn_as(width, height, Choice { order: FileOrder::Read, help: false }, trouble)
    }

    fn drawn_as(width: u16, height: u16, choice: Choice, trouble: Option<&str>) -> String {
        let mut status = Status { process_id: 7, pfs: "/lustre".into(), ..Status::default() };
        status.store.capacity_bytes = 8 << 30;
        status.store.resident_bytes = 2 << 30;
        status.control.lease = "governed".into();
        let report = ControlReport { demand_bytes: 3 << 30, ..ControlReport::default() };
        status.control.report = Some(report);
        let begun = Instant::now();
        let file = CachedFile {
            path: "set/part-7".into(),
            resident_bytes: 5 << 30,
            read_bytes: 9 << 30,
            pinned: true,
            ..CachedFile::default()
        };
        let look = |status, taken| Look { status, files: vec![file.clone()], taken };
        let mut history = History::new(look(status.clone(), begun));
        status.served = BytesByLevel { store: 300 << 20, pfs: 100 << 20, ..Default::default() };
        status.hit_ratio = Some(0.75);
        history.add(look(status, begun + Duration::from_secs(1)));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &history, choice, trouble)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_view_shows_the_facts() {
        let screen = drawn(100, 40, None);
        let node = ["node 7", "/lustre", "2GiB of 8GiB", "now 75.0%", "300MiB/s", "demand 3GiB"];
        let files = ["most read first", "set/part-7", "5GiB", "9GiB", "0B", "pinned", "q quit"];
        for fact in node.into_iter().chain(files) {
            assert!(screen.contains(fact), "{fact} is missing in\n{screen}");
        }
    }

    #[test]
    fn a_low_window_shows_the_levels_that_served_and_files() {
        let screen = drawn(60, 15, None);
        for fact in ["store", "pfs", "now 75.0%", "set/part", "q quit"] {
            assert!(screen.contains(fact), "{fact} is missing in\n{screen}");
        }
        for empty in ["mapped", "peer", "buffer", "transfers"] {
            assert!(!screen.contains(empty), "{empty} takes room in\n{screen}");
        }
    }

    #[test]
    fn keys_are_explained_when_asked() {
        let choice = Choice { order: FileOrder::Read, help: true };
        let screen = drawn_as(100, 40, choice, None);
        assert!(screen.contains("this help") && screen.contains("any key closes"), "{screen}");
        let narrow = drawn_as(60, 15, choice, None);
        assert!(HELP.iter().all(|line| narrow.contains(line)), "{narrow}");
        drawn_as(3, 2, choice, None);
    }

    #[test]
    fn trouble_replaces_the_help_and_small_terminals_do_not_panic() {
        assert!(drawn(100, 30, Some("no node answers")).contains("no node answers"));
        for (width, height) in [(1, 1), (10, 5), (37, 12), (300, 2)] {
            drawn(width, height, None);
        }
    }
}
