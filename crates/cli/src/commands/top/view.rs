//! Draws the live view of `tidepool top`. Asks the node nothing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Gauge, Paragraph, Row, Sparkline, Table};
use tidepool_proto::Level;
use tidepool_proto::admin::{HitRatio, Status};
use tidepool_proto::control::ALARMS;
use tidepool_proto::files::FileOrder;

use super::history::{FileRate, History, Rates};
use tidepool_terminal::output::{count, duration, percent, share, size};

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
/// Lines of all notes together.
const NOTES_LINES_MAX: usize = 4;

/// Draws the latest look at the node; `trouble` is why there is no newer one. Where the window is
/// low, the files go before the traffic, and what is wrong with the node before both.
pub fn draw(frame: &mut Frame<'_>, history: &History, choice: Choice, trouble: Option<&str>) {
    let area = frame.area();
    let columns = usize::from(area.width);
    let head_lines = head(history.status(), columns);
    let notes = notes(history.status(), columns);
    let foot_lines = foot(trouble, columns);
    let series = series(history);
    let levels = series.len().max(1) as u16 + 2;
    let heights = [head_lines.len(), 3, usize::from(levels), notes.len(), foot_lines.len()];
    let left = area.height.saturating_sub(heights.iter().sum::<usize>() as u16);
    let traffic = if left >= TRAFFIC_LINES + FILES_LINES_MIN { TRAFFIC_LINES } else { 0 };
    let [head, gauges, levels, traffic, degraded, files, foot] = Layout::vertical([
        Constraint::Length(head_lines.len() as u16),
        Constraint::Length(3),
        Constraint::Length(levels),
        Constraint::Length(traffic),
        Constraint::Length(notes.len() as u16),
        Constraint::Min(0),
        Constraint::Length(foot_lines.len() as u16),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_lines), head);
    draw_gauges(frame, gauges, history);
    draw_levels(frame, levels, history, &series);
    draw_traffic(frame, traffic, history.status(), &history.latest());
    frame.render_widget(Paragraph::new(notes).yellow(), degraded);
    draw_files(frame, files, history.files(), choice.order);
    frame.render_widget(Paragraph::new(foot_lines), foot);
    if choice.help {
        draw_help(frame, area);
    }
}

/// Parts beside each other, in as many lines as they need; none is broken.
fn flow(parts: &[String], columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= columns => {
                *line += "  ";
                *line += part;
            }
            _ => lines.push(part.clone()),
        }
    }
    lines
}

/// A text in lines; those after the first begin further right.
fn broken(text: &str, columns: usize, indent: usize) -> Vec<String> {
    let below = " ".repeat(indent.min(columns / 2));
    let options = textwrap::Options::new(columns.max(1)).subsequent_indent(&below);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}

fn notes(status: &Status, columns: usize) -> Vec<Line<'static>> {
    let drained = "draining: new opens are refused until `tidepool node drain --undo`";
    let drained = status.draining.then(|| drained.to_owned());
    let degraded = status.degraded.iter().map(|note| format!("degraded: {note}"));
    let lines = drained.into_iter().chain(degraded).flat_map(|note| broken(&note, columns, 2));
    lines.take(NOTES_LINES_MAX).map(Line::from).collect()
}

fn foot(trouble: Option<&str>, columns: usize) -> Vec<Line<'static>> {
    if let Some(trouble) = trouble {
        return broken(trouble, columns, 2).into_iter().map(|it| Line::from(it).red()).collect();
    }
    let keys = ["q quit", "? help", "files by: m memory, r reads"].map(str::to_owned);
    flow(&keys, columns).into_iter().take(1).map(|it| Line::from(it).dim()).collect()
}

/// Keys first: they stay in the lowest window.
const HELP: [&str; 9] = [
    "q, Esc   quit",
    "m, r     files: most bytes in memory or most read first",
    "?        this help",
    "kernel   cached files that the kernel reads by itself; ~ is their length at each open, as how \
     much of it is read is told to nobody",
    "mapped   read by programs from the node's memory",
    "store    sent by the node from its memory",
    "pfs      from the PFS: not cached",
    "In a low window the boxes of files and traffic go first.",
    "All figures: tidepool status; of a file: tidepool explain",
];
/// Where the explanations begin.
const HELP_INDENT: usize = 9;
/// As wide as the help becomes, its border included.
const HELP_COLUMNS_MAX: u16 = 60;

/// Covers the whole of a window that is no larger, and then has no border.
fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = |columns: u16| -> Vec<Line<'static>> {
        let broken = HELP.iter().flat_map(|line| broken(line, columns.into(), HELP_INDENT));
        broken.map(Line::from).collect()
    };
    let width = HELP_COLUMNS_MAX.min(area.width);
    let bordered = lines(width.saturating_sub(2).max(1));
    let height = bordered.len() as u16 + 2;
    if height > area.height || width < HELP_COLUMNS_MAX {
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(lines(area.width)), area);
        return;
    }
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let place = Rect { x: area.x + x, y: area.y + y, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" any key closes this ");
    frame.render_widget(Paragraph::new(bordered).block(block), place);
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
        total_bytes: status.transfers.passthrough_bytes,
        rate: |rates, _| rates.passthrough_bytes_per_s,
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

/// What is looked at, in as many lines as the window needs.
fn head(status: &Status, columns: usize) -> Vec<Line<'static>> {
    let title = [
        "tidepool".to_owned(),
        format!("node {}", status.process_id),
        format!("{} ({})", status.pfs, status.pfs_type),
        format!("up {}", duration(status.uptime_s)),
    ];
    let second = [
        status.mount.clone().unwrap_or_else(|| "not mounted".to_owned()),
        format!("policy {}", status.store.policy),
        format!("read {}", status.read_mode),
        format!("write {}", status.write_mode),
        count(status.open_files, "open file"),
        count(status.clients, "client"),
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = flow(&title, columns).into_iter().map(|it| Line::from(it).style(bold));
    let second = flow(&second, columns).into_iter().map(|it| Line::from(it).dim());
    title.chain(second).collect()
}

/// A hit ratio; what the kernel reads by itself nobody knows.
fn hits_words(hits: HitRatio) -> Option<String> {
    let (least, estimated) = hits.hit_ratio_at_least.zip(hits.hit_ratio_estimated)?;
    let (least, estimated) = (least * 100.0, estimated * 100.0);
    Some(if least < estimated {
        format!("~{estimated:.1}%, at least {least:.1}%")
    } else {
        format!("{least:.1}%")
    })
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
    let (total, now) = (history.status().hits(), history.latest().hits);
    let total_text = hits_words(total).unwrap_or_else(|| "no reads yet".to_owned());
    let label = hits_words(now).map_or("idle".to_owned(), |ratio| format!("now {ratio}"));
    let shown = now.hit_ratio_estimated.or(total.hit_ratio_estimated).unwrap_or(0.0);
    let hits = Gauge::default()
        .block(Block::bordered().title(format!(" hit ratio {total_text} ")))
        .gauge_style(Style::new().fg(Color::Green))
        .ratio(shown.clamp(0.0, 1.0))
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
    // Of what is counted; of the kernel's own reads only the length of the files is known.
    let counted = series.iter().filter(|series| series.level.is_some());
    let counted_bytes = counted.map(|series| series.total_bytes).sum();
    for ((series, curve), row) in series.iter().zip(&curves).zip(inner.rows()) {
        let [name, line] =
            Layout::horizontal([Constraint::Length(NAME_COLUMNS), Constraint::Min(0)]).areas(row);
        let rate = (series.rate)(&history.latest(), series.level);
        let (about, part) = match series.level {
            None => ("~", String::new()),
            Some(_) => ("", percent(series.total_bytes, counted_bytes)),
        };
        let [rate, total] = [rate, series.total_bytes].map(|bytes| about.to_owned() + &size(bytes));
        let text = format!("{:<6} {rate:>10}/s {total:>10} {part:>6}", series.name);
        frame.render_widget(Line::from(text).fg(series.colour), name);
        let sparkline =
            Sparkline::default().data(curve).max(highest).style(Style::new().fg(series.colour));
        frame.render_widget(sparkline, line);
    }
}

fn draw_files(frame: &mut Frame<'_>, area: Rect, files: &[FileRate], order: FileOrder) {
    let title = format!(" files, most {order} first ");
    let header = Row::new(["resident", "of", "read", "per second", "open", "", "file"]).dim();
    let read = |counted: u64, lent: u64| match lent {
        0 => size(counted),
        _ => format!("~{}", size(counted + lent)),
    };
    let rows = files.iter().map(|FileRate { file, read_bytes_per_s, passthrough_bytes_per_s }| {
        let kept = match (file.pinned, file.memory_only) {
            (_, true) => "memory only",
            (true, false) => "pinned",
            (false, false) => "",
        };
        Row::new([
            size(file.resident_bytes),
            size(file.size_bytes),
            read(file.read_bytes, file.passthrough_bytes),
            read_bytes_per_s
                .zip(*passthrough_bytes_per_s)
                .map(|(counted, lent)| read(counted, lent))
                .unwrap_or_default(),
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
            "dirty {} under way to the PFS{age}; {} in memory only",
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
        status.hit_ratio_at_least = Some(0.75);
        status.hit_ratio_estimated = Some(0.75);
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
        for (width, height) in [(100, 40), (60, 15), (40, 20), (60, 12)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw_help(frame, frame.area())).unwrap();
            let words = terminal.backend().to_string().replace(['"', '│'], " ");
            let words: Vec<&str> = words.split_whitespace().collect();
            let explained = |line: &&str| {
                let wanted: Vec<&str> = line.split_whitespace().collect();
                words.windows(wanted.len()).any(|some| some == wanted)
            };
            let keys = if height < 15 { 3 } else { HELP.len() };
            assert!(HELP[..keys].iter().all(explained), "{width} by {height}: {words:?}");
        }
        drawn_as(3, 2, choice, None);
    }

    #[test]
    fn a_narrow_window_has_all_of_the_head_and_of_what_is_wrong() {
        let screen = drawn(40, 30, Some("no node answers at the socket that was named to it"));
        for fact in ["node 7", "/lustre", "not mounted", "0 open files", "0 clients", "to it"] {
            assert!(screen.contains(fact), "{fact} is missing in\n{screen}");
        }
        let screen = drawn(24, 30, None);
        assert!(screen.contains("0 clients") && screen.contains("q quit  ? help"), "{screen}");
    }

    #[test]
    fn a_drained_node_is_told() {
        let status = Status { draining: true, ..Status::default() };
        let said: Vec<String> = notes(&status, 30).iter().map(Line::to_string).collect();
        let said = said.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(said, "draining: new opens are refused until `tidepool node drain --undo`");
        assert!(notes(&Status::default(), 30).is_empty());
    }

    #[test]
    fn what_the_kernel_reads_by_itself_is_an_estimate_with_a_bound() {
        let served = BytesByLevel { pfs: 100, ..BytesByLevel::default() };
        let words = |lent| hits_words(HitRatio::of(&served, lent));
        assert_eq!(words(0).as_deref(), Some("0.0%"));
        assert_eq!(words(300).as_deref(), Some("~75.0%, at least 0.0%"));
        assert_eq!(hits_words(HitRatio::default()), None);
    }

    #[test]
    fn trouble_replaces_the_help_and_small_terminals_do_not_panic() {
        assert!(drawn(100, 30, Some("no node answers")).contains("no node answers"));
        for (width, height) in [(1, 1), (10, 5), (37, 12), (300, 2)] {
            drawn(width, height, None);
        }
    }
}
