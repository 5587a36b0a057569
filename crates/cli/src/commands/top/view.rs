//! How the live view looks. Draws; asks nothing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use tidepool_proto::Level;
use tidepool_proto::admin::Status;
use tidepool_proto::control::ALARMS;
use tidepool_proto::files::FileOrder;

use super::history::{FileRate, History, Rates};
use crate::output::{duration, percent, share, size};

/// Width of names before the curves.
const NAME_COLUMNS: u16 = 36;

fn colour(level: Level) -> Color {
    match level {
        Level::Mapped => Color::Green,
        Level::Store => Color::Cyan,
        Level::Peer => Color::Blue,
        Level::Buffer => Color::Magenta,
        Level::Pfs => Color::Yellow,
    }
}

/// Draws the latest look at the node, with the files in their `order`; `trouble` is why there is no
/// newer one.
pub fn draw(frame: &mut Frame<'_>, history: &History, order: FileOrder, trouble: Option<&str>) {
    let notes = history.status().degraded.len().min(4) as u16;
    let [head, gauges, levels, traffic, degraded, files, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(2 * Level::ALL.len() as u16 + 2),
        Constraint::Length(7),
        Constraint::Length(notes),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, history.status());
    draw_gauges(frame, gauges, history);
    draw_levels(frame, levels, history);
    draw_traffic(frame, traffic, history.status(), &history.latest());
    let lines =
        history.status().degraded.iter().map(|note| Line::from(format!("degraded: {note}")));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).yellow(), degraded);
    draw_files(frame, files, history.files(), order);
    let foot_line = match trouble {
        Some(trouble) => Line::from(trouble.to_owned()).red(),
        None => Line::from("q quit  files by: m memory, r reads").dim(),
    };
    frame.render_widget(foot_line, foot);
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
        "{mount}  policy {}  read {}  write {}  {} open files  {} clients",
        status.store.policy, status.read_mode, status.write_mode, status.open_files, status.clients
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

fn draw_levels(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let block = Block::bordered().title(" bytes served by level ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = Layout::vertical([Constraint::Length(2); Level::ALL.len()]).split(inner);
    let curve_columns = usize::from(inner.width.saturating_sub(NAME_COLUMNS));
    let curves = Level::ALL
        .map(|level| history.curve(curve_columns, |rates| rates.served_bytes_per_s.get(level)));
    // One scale for all levels, so that the curves can be compared.
    let highest = curves.iter().flatten().copied().max().unwrap_or(0).max(1);
    let served = &history.status().served;
    for ((level, curve), row) in Level::ALL.iter().zip(&curves).zip(rows.iter()) {
        let [name, line] =
            Layout::horizontal([Constraint::Length(NAME_COLUMNS), Constraint::Min(0)]).areas(*row);
        let rate = history.latest().served_bytes_per_s.get(*level);
        let total = served.get(*level);
        let text = Paragraph::new(vec![
            Line::from(format!("{:<7} {:>12}/s", level.name(), size(rate))).fg(colour(*level)),
            Line::from(format!("        {:>12} {}", size(total), percent(total, served.total())))
                .dim(),
        ]);
        frame.render_widget(text, name);
        let sparkline =
            Sparkline::default().data(curve).max(highest).style(Style::new().fg(colour(*level)));
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
            "store     {} segments, {} packed files, {} blocks/s evicted",
            status.store.segments, status.store.small_files, rates.evicted_blocks_per_s
        )),
        Line::from(format!(
            "owed      {} to the PFS{age}; {} in memory only",
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
        terminal.draw(|frame| draw(frame, &history, FileOrder::Read, trouble)).unwrap();
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
    fn trouble_replaces_the_help_and_small_terminals_do_not_panic() {
        assert!(drawn(100, 30, Some("no node answers")).contains("no node answers"));
        for (width, height) in [(1, 1), (10, 5), (37, 12), (300, 2)] {
            drawn(width, height, None);
        }
    }
}
