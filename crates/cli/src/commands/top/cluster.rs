//! `tidepool top --cluster`: all nodes over time, a line each.

use std::time::Instant;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use serde::Serialize;
use tidepool_proto::Result;
use tidepool_proto::admin::NodeReport;

use super::Live;
use super::history::{Rates, rates};
use crate::connection::Connection;
use tidepool_terminal::output::{count, size};

/// All nodes over time.
pub struct ClusterView {
    asked: Connection,
    reports: Vec<NodeReport>,
    taken: Instant,
    lines: Vec<NodeLine>,
}

/// A node at the latest look.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct NodeLine {
    /// Its name.
    node: String,
    /// As the node that was asked sees it.
    state: String,
    /// Why it did not answer.
    error: Option<String>,
    /// Absent where it did not answer twice, or was started anew in between.
    rates: Option<Rates>,
}

/// A look as a line of JSON.
#[derive(Serialize)]
struct LookLine<'a> {
    nodes: &'a [NodeLine],
}

fn lines(before: &[NodeReport], after: &[NodeReport], seconds: f64) -> Vec<NodeLine> {
    let line = |now: &NodeReport| {
        let earlier = before.iter().find(|earlier| earlier.node == now.node);
        let both =
            earlier.and_then(|earlier| Some((earlier.status.as_ref()?, now.status.as_ref()?)));
        let same = both.filter(|(earlier, now)| earlier.process_id == now.process_id);
        NodeLine {
            node: now.node.clone(),
            state: now.state.clone(),
            error: now.error.clone(),
            rates: same.map(|(earlier, now)| rates(earlier, now, seconds)),
        }
    };
    after.iter().map(line).collect()
}

impl ClusterView {
    /// Begins with a first look.
    pub fn new(asked: Connection) -> Result<Self> {
        let reports = asked.cluster_status()?;
        let lines = lines(&[], &reports, 1.0);
        Ok(ClusterView { asked, reports, taken: Instant::now(), lines })
    }

    fn title(&self) -> String {
        let alive = self.lines.iter().filter(|line| line.error.is_none()).count();
        let of_all = |rate: fn(&Rates) -> u64| -> u64 {
            self.lines.iter().filter_map(|line| line.rates.as_ref()).map(rate).sum()
        };
        format!(
            "tidepool  {alive} of {}  {} in memory  from peers {}/s  from the PFS {}/s",
            count(self.lines.len() as u64, "node"),
            size(of_all(|rates| rates.resident_bytes)),
            size(of_all(|rates| rates.served_bytes_per_s.peer)),
            size(of_all(|rates| rates.pfs_read_bytes_per_s)),
        )
    }
}

const HEADER: [&str; 9] =
    ["node", "state", "memory", "of", "hits", "memory/s", "from peers/s", "to peers/s", "PFS/s"];

fn cells(line: &NodeLine) -> Vec<String> {
    let head = [line.node.clone(), line.error.clone().unwrap_or_else(|| line.state.clone())];
    let Some(rates) = &line.rates else { return head.to_vec() };
    let served = &rates.served_bytes_per_s;
    let hits = rates.hits.hit_ratio_at_least;
    let tail = [
        size(rates.resident_bytes),
        size(rates.capacity_bytes),
        hits.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0)),
        size(served.mapped + served.store + rates.passthrough_bytes_per_s),
        size(served.peer),
        size(rates.peer_served_bytes_per_s),
        size(rates.pfs_read_bytes_per_s),
    ];
    [&head[..], &tail[..]].concat()
}

impl Live for ClusterView {
    fn look(&mut self) -> Result<()> {
        let reports = self.asked.cluster_status()?;
        let now = Instant::now();
        let seconds = now.duration_since(self.taken).as_secs_f64().max(1e-6);
        self.lines = lines(&self.reports, &reports, seconds);
        (self.reports, self.taken) = (reports, now);
        Ok(())
    }

    fn draw(&self, frame: &mut Frame<'_>, help: bool, trouble: Option<&str>) {
        let [head, table, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(Line::from(self.title()).bold()), head);
        let row = |line: &NodeLine| {
            let is_well = line.error.is_none() && ["self", "alive"].contains(&line.state.as_str());
            let row = Row::new(cells(line));
            if is_well { row } else { row.style(Style::new().red()) }
        };
        let widths = [16, 12, 10, 10, 7, 10, 12, 10, 10].map(Constraint::Length);
        let rows = Table::new(self.lines.iter().map(row), widths)
            .header(Row::new(HEADER).style(Style::new().dim()));
        frame.render_widget(rows, table);
        let keys = match (trouble, help) {
            (Some(trouble), _) => Line::from(trouble.to_owned()).red(),
            (None, false) => Line::from("q quit  ? help").dim(),
            (None, true) => {
                let text = "hits: bytes read that did not come from the PFS, at least; memory/s: \
                            from the node's own memory. One node: tidepool top";
                Line::from(text)
            }
        };
        frame.render_widget(Paragraph::new(keys), foot);
    }

    fn key(&mut self, _key: KeyCode) -> bool {
        false
    }

    fn line(&self) -> serde_json::Result<String> {
        serde_json::to_string(&LookLine { nodes: &self.lines })
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tidepool_proto::BytesByLevel;
    use tidepool_proto::admin::Status;

    use super::*;

    fn report(node: &str, process_id: u32, peer: u64) -> NodeReport {
        let served = BytesByLevel { peer, ..BytesByLevel::default() };
        let status = Status { process_id, served, peer_served_bytes: peer, ..Status::default() };
        let (state, status) = ("alive".to_owned(), Some(Box::new(status)));
        NodeReport { node: node.to_owned(), state, status, error: None }
    }

    #[test]
    fn rates_are_of_nodes_that_answered_twice() {
        let gone = NodeReport {
            state: "down".into(),
            status: None,
            error: Some("no answer".into()),
            ..report("c", 1, 0)
        };
        let before = [report("a", 1, 100), report("b", 2, 100), report("c", 3, 0)];
        let after = [report("b", 20, 50), report("a", 1, 300), gone, report("d", 4, 9)];
        let lines = lines(&before, &after, 2.0);
        let rate = |line: &NodeLine| line.rates.as_ref().map(|it| it.served_bytes_per_s.peer);
        let told: Vec<_> = lines.iter().map(|line| (line.node.as_str(), rate(line))).collect();
        assert_eq!(told, [("b", None), ("a", Some(100)), ("c", None), ("d", None)]);
        assert_eq!(lines[2].error.as_deref(), Some("no answer"));
        assert_eq!(cells(&lines[1]).len(), HEADER.len());
        assert_eq!(cells(&lines[2])[1], "no answer");
    }

    #[test]
    fn it_is_drawn_in_windows_of_any_size() {
        let reports = vec![report("a", 1, 100), report("b", 2, 100)];
        let lines = lines(&reports, &reports, 1.0);
        let asked = crate::connection::SocketArgument { socket: Some("/none".into()) }.connect();
        let view = ClusterView { asked, reports, taken: Instant::now(), lines };
        for (columns, rows) in [(1, 1), (20, 3), (120, 30)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| view.draw(frame, false, None)).unwrap();
            terminal.draw(|frame| view.draw(frame, true, Some("trouble"))).unwrap();
        }
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
        terminal.draw(|frame| view.draw(frame, false, None)).unwrap();
        let text = terminal.backend().to_string();
        assert!(text.contains("2 of 2 nodes") && text.contains("alive"), "{text}");
    }
}
