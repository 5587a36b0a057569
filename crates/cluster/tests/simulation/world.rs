//! A virtual cluster: nodes as they run, a network that drops, delays, reorders and splits, and one
//! clock. Everything follows from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidepool_cluster::{ClusterNode, NodeName, Output, Roster, Settings, Time};

/// How long a caller waits for a reply.
const CALL_DEADLINE: Duration = Duration::from_millis(500);

/// Numbers that follow from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, per_thousand: u64) -> bool {
        self.below(1000) < per_thousand
    }
}

/// What the network does.
#[derive(Clone, Debug)]
pub struct Network {
    /// Datagrams lost, of a thousand.
    pub loss: u64,
    /// Calls that fail, of a thousand: half of them arrive all the same, some after the failure.
    pub call_loss: u64,
    /// Shortest and longest delay, microseconds.
    pub delay_us: (u64, u64),
    /// Nodes reach each other when they are in the same group.
    pub groups: Vec<u8>,
}

enum Event {
    Tick { node: usize, life: u32 },
    Datagram { to: usize, bytes: Vec<u8> },
    Request { from: usize, from_life: u32, to: usize, request: Vec<u8>, answered: bool },
    Reply { from: usize, to: usize, to_life: u32, reply: Vec<u8> },
    Failure { from: usize, from_life: u32, to: usize },
}

struct Queued(Time, u64, Event);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A node of the world.
pub struct Host {
    pub name: NodeName,
    /// `None` while it is down.
    pub node: Option<ClusterNode>,
    /// How often it was started.
    pub life: u32,
    /// Since when it is down.
    pub down_since: Option<Time>,
    paused_until: Time,
    tick_at: Time,
}

/// Something that a node was told of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub at: Time,
    pub node: usize,
    pub member: usize,
    pub up: bool,
}

pub struct World {
    pub now: Time,
    pub random: Random,
    pub network: Network,
    pub hosts: Vec<Host>,
    pub roster: Roster,
    pub settings: Settings,
    pub notices: Vec<Notice>,
    pub calls: u64,
    pub call_bytes: u64,
    pub datagrams: u64,
    /// Tells what happens.
    pub trace: bool,
    queue: BinaryHeap<Reverse<Queued>>,
    queued: u64,
}

impl World {
    /// `count` nodes, none of them started.
    pub fn new(count: usize, settings: Settings, seed: u64) -> Self {
        let list = format!("n[1-{count}]");
        let roster = Roster::parse(&list, 7478).expect("a list");
        let host = |member: &tidepool_cluster::Member| Host {
            name: member.name.clone(),
            node: None,
            life: 0,
            down_since: Some(Time::ZERO),
            paused_until: Time::ZERO,
            tick_at: Time::MAX,
        };
        let hosts = roster.members().iter().map(host).collect();
        let network =
            Network { loss: 0, call_loss: 0, delay_us: (100, 500), groups: vec![0; count] };
        Self {
            now: Duration::from_secs(1),
            random: Random::new(seed),
            network,
            hosts,
            roster,
            settings,
            notices: Vec::new(),
            calls: 0,
            call_bytes: 0,
            datagrams: 0,
            trace: false,
            queue: BinaryHeap::new(),
            queued: 0,
        }
    }

    /// A line of the trace.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:.6} {}", self.now.as_secs_f64(), what());
        }
    }

    pub fn index(&self, name: &NodeName) -> usize {
        let number: usize = name.as_str()[1..].parse().expect("nN");
        number - 1
    }

    pub fn start(&mut self, index: usize) {
        self.say(|| format!("{index} starts"));
        let seed = self.random.next();
        let host = &mut self.hosts[index];
        host.life += 1;
        host.down_since = None;
        host.paused_until = Time::ZERO;
        // The time of the start, by a clock that may have gone back since the life before.
        let went_back = host.life > 2 && self.random.below(4) == 0;
        let life = u64::from(host.life);
        let incarnation = if went_back { life / 2 } else { life };
        let (settings, name) = (self.settings.clone(), host.name.clone());
        host.node =
            Some(ClusterNode::new(settings, name, incarnation, &self.roster, seed, self.now));
        host.tick_at = Time::MAX;
        self.act(index, |node, now| {
            node.tick(now);
        });
    }

    pub fn crash(&mut self, index: usize) {
        self.say(|| format!("{index} stops"));
        self.hosts[index].node = None;
        self.hosts[index].down_since = Some(self.now);
    }

    /// The node does nothing for a time, then all that came meanwhile.
    pub fn pause(&mut self, index: usize, time: Duration) {
        self.say(|| format!("{index} pauses for {time:?}"));
        self.hosts[index].paused_until = self.now + time;
    }

    pub fn is_paused(&self, index: usize) -> bool {
        self.hosts[index].paused_until > self.now
    }

    pub fn resume_all(&mut self) {
        for host in &mut self.hosts {
            host.paused_until = Time::ZERO;
        }
    }

    pub fn reachable(&self, from: usize, to: usize) -> bool {
        self.network.groups[from] == self.network.groups[to]
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|&index| self.hosts[index].node.is_some()).collect()
    }

    /// Calls the node, then carries out what it wants.
    pub fn act<T>(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut ClusterNode, Time) -> T,
    ) -> Option<T> {
        let now = self.now;
        let node = self.hosts[index].node.as_mut()?;
        let value = call(node, now);
        self.carry_out(index);
        Some(value)
    }

    fn carry_out(&mut self, index: usize) {
        loop {
            let Some(node) = self.hosts[index].node.as_mut() else { return };
            let Some(output) = node.poll() else { break };
            match output {
                Output::Datagram { to, bytes } => self.send(index, &to, bytes),
                Output::Call { to, request } => self.call(index, &to, request),
                Output::Up(member) => self.notice(index, &member, true),
                Output::Down(member) => self.notice(index, &member, false),
            }
        }
        let host = &mut self.hosts[index];
        let due = host.node.as_ref().map_or(Time::MAX, ClusterNode::next_due).max(self.now);
        if due < host.tick_at {
            host.tick_at = due;
            let life = host.life;
            self.put(due, Event::Tick { node: index, life });
        }
    }

    fn notice(&mut self, node: usize, member: &NodeName, up: bool) {
        let member = self.index(member);
        self.say(|| format!("{node} sees {member} {}", if up { "up" } else { "down" }));
        self.notices.push(Notice { at: self.now, node, member, up });
    }

    fn put(&mut self, at: Time, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse(Queued(at, self.queued, event)));
    }

    fn delay(&mut self) -> Duration {
        let (least, most) = self.network.delay_us;
        Duration::from_micros(least + self.random.below(most - least + 1))
    }

    fn send(&mut self, from: usize, to: &NodeName, bytes: Vec<u8>) {
        assert!(bytes.len() <= self.settings.datagram_bytes_max, "a datagram of {}", bytes.len());
        self.datagrams += 1;
        let to = self.index(to);
        if self.reachable(from, to) && !self.random.chance(self.network.loss) {
            let at = self.now + self.delay();
            self.put(at, Event::Datagram { to, bytes });
        }
    }

    fn call(&mut self, from: usize, to: &NodeName, request: Vec<u8>) {
        assert!(request.len() <= 256 << 10, "a request of {} bytes", request.len());
        self.calls += 1;
        self.call_bytes += request.len() as u64;
        let to = self.index(to);
        let from_life = self.hosts[from].life;
        let fails = !self.reachable(from, to) || self.random.chance(self.network.call_loss);
        self.say(|| format!("{from} calls {to}, {} bytes, fails: {fails}", request.len()));
        let arrives = self.reachable(from, to) && (!fails || self.random.chance(500));
        if arrives {
            let late = if fails { self.random.below(1_500) } else { 0 };
            let at = self.now + self.delay() + Duration::from_millis(late);
            self.put(at, Event::Request { from, from_life, to, request, answered: !fails });
        }
        if fails {
            self.put(self.now + CALL_DEADLINE, Event::Failure { from, from_life, to });
        }
    }

    /// Runs until the time comes.
    pub fn run_until(&mut self, until: Time) {
        while let Some(Reverse(Queued(at, ..))) = self.queue.peek() {
            if *at > until {
                break;
            }
            let Some(Reverse(Queued(at, _, event))) = self.queue.pop() else { break };
            self.now = self.now.max(at);
            self.handle(event);
        }
        self.now = self.now.max(until);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn handle(&mut self, event: Event) {
        let (Event::Tick { node: at, .. }
        | Event::Datagram { to: at, .. }
        | Event::Request { to: at, .. }
        | Event::Reply { to: at, .. }
        | Event::Failure { from: at, .. }) = event;
        if self.hosts[at].paused_until > self.now && self.hosts[at].node.is_some() {
            let until = self.hosts[at].paused_until;
            self.put(until, event);
            return;
        }
        match event {
            Event::Tick { node, life } => {
                if self.hosts[node].life == life && self.hosts[node].tick_at <= self.now {
                    self.hosts[node].tick_at = Time::MAX;
                    self.act(node, |node, now| node.tick(now));
                }
            }
            Event::Datagram { to, bytes } => {
                self.act(to, |node, now| node.receive(now, &bytes));
            }
            Event::Request { from, from_life, to, request, answered } => {
                let name = self.hosts[from].name.clone();
                let reply = self.act(to, |node, now| node.serve(now, &name, &request));
                self.say(|| format!("{to} answers {from}: {reply:?}, heard: {answered}"));
                if !answered {
                    return;
                }
                match reply {
                    Some(reply) if self.reachable(from, to) => {
                        let at = self.now + self.delay();
                        let reply = Event::Reply { from: to, to: from, to_life: from_life, reply };
                        self.put(at, reply);
                    }
                    _ => {
                        let at = self.now + CALL_DEADLINE;
                        self.put(at, Event::Failure { from, from_life, to });
                    }
                }
            }
            Event::Reply { from, to, to_life, reply } => {
                if self.hosts[to].life == to_life {
                    let name = self.hosts[from].name.clone();
                    self.act(to, |node, now| node.call_done(now, &name, &reply));
                }
            }
            Event::Failure { from, from_life, to } => {
                if self.hosts[from].life == from_life {
                    let name = self.hosts[to].name.clone();
                    self.act(from, |node, now| node.call_failed(now, &name));
                }
            }
        }
    }
}
