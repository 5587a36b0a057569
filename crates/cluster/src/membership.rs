//! Who is alive: `foca` (SWIM) with its timers, its list of seeds, and what it lacks.
//!
//! Added to it: only nodes of the roster are members; nodes that are not heard of are called again
//! and again, so that a node finds its cluster whoever was first; who suspects a member tells it at
//! once, so that a false suspicion ends within a round trip; a member that leaves says so to all.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Config, Foca, NoCustomBroadcast, PeriodicParams, State, Timer};

use crate::hash::Map;
use crate::message::Life;
use crate::random::Random;
use crate::roster::name_hash;
use crate::wire::{self, Codec, Identity, Kind, PREFIX_BYTES};
use crate::{MemberState, MemberView, NodeName, Roster, Settings, Time};

/// First pause between two calls to nodes that are not heard of.
const JOIN_PERIOD: Duration = Duration::from_millis(100);
/// Calls a round in all, and calls a round to one node, about; at least.
const JOIN_CALLS: u64 = 8;
/// One in so many absent nodes is called in a round, where that is more.
const JOIN_SHARE: u64 = 16;
/// Times that a suspect is told, within the time that it has.
const ACCUSATIONS: u32 = 6;

/// Place of a member in this node's list.
pub(crate) type MemberIndex = u16;

/// What changed among the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The member came, or came back.
    Up(MemberIndex),
    /// The member is down or left.
    Down(MemberIndex),
    /// The others took this node for dead; they know better now, and hold nothing of it.
    Rejoined,
}

/// A node of the list.
struct Known {
    name: NodeName,
    id: u64,
    /// Its latest life that was heard of.
    identity: Identity,
    state: MemberState,
    since: Time,
}

/// What is due at a time.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Foca(Timer<Identity>),
    /// Call nodes that are not heard of.
    Join,
    /// Tell a suspect again.
    Accuse {
        suspect: Identity,
        incarnation: u16,
        left: u32,
    },
}

/// A timer; of equal times the one that was set first.
struct Alarm(Time, u64, Due);

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What `foca` said during a call.
#[derive(Default)]
struct Said {
    sends: Vec<(Identity, Vec<u8>)>,
    timers: Vec<(Timer<Identity>, Duration)>,
    notes: Vec<Note>,
    prefix: [u8; PREFIX_BYTES],
}

impl Said {
    const fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.timers.is_empty() && self.notes.is_empty()
    }
}

enum Note {
    Up(Identity),
    Down(Identity),
    Renamed(Identity, Identity),
    Rejoined,
}

impl foca::Runtime<Identity> for &mut Said {
    fn notify(&mut self, notification: foca::Notification<'_, Identity>) {
        use foca::Notification::{MemberDown, MemberUp, Rejoin, Rename};
        self.notes.push(match notification {
            MemberUp(identity) => Note::Up(*identity),
            MemberDown(identity) => Note::Down(*identity),
            Rename(old, new) => Note::Renamed(*old, *new),
            Rejoin(_) => Note::Rejoined,
            _ => return,
        });
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + data.len());
        bytes.extend_from_slice(&self.prefix);
        bytes.extend_from_slice(data);
        self.sends.push((to, bytes));
    }

    fn submit_after(&mut self, timer: Timer<Identity>, after: Duration) {
        self.timers.push((timer, after));
    }
}

/// Membership as one node sees it.
pub(crate) struct Membership {
    foca: Foca<Identity, Codec, Random, NoCustomBroadcast>,
    cluster: [u8; 4],
    known: Vec<Known>,
    by_id: Map<u64, MemberIndex>,
    me: MemberIndex,
    /// Living members as hash of the name and place, this node included; in no order.
    alive: Vec<(u64, MemberIndex)>,
    alarms: BinaryHeap<Reverse<Alarm>>,
    alarms_set: u64,
    random: Random,
    said: Said,
    left: bool,
    join_at: Time,
    join_period: Duration,
    join_period_max: Duration,
    suspect_time: Duration,
    /// Datagrams to send.
    pub sends: VecDeque<(MemberIndex, Vec<u8>)>,
    /// Changes to act on.
    pub events: VecDeque<Event>,
    /// Datagrams that were no message of this cluster, and that were one.
    pub garbage: u64,
    /// See `garbage`.
    pub understood: u64,
}

/// The settings as `foca` has them.
fn config(settings: &Settings) -> Config {
    let every = |frequency, members| {
        Some(PeriodicParams {
            frequency,
            num_members: NonZeroUsize::new(members).expect("a constant above 0"),
        })
    };
    // foca panics or spins where these are 0.
    let least = |time: Duration| time.max(Duration::from_millis(1));
    let probe_rtt = least(settings.probe_rtt);
    let message_bytes = settings.datagram_bytes_max.max(256) - PREFIX_BYTES;
    Config {
        probe_period: settings.probe_period.max(probe_rtt * 2),
        probe_rtt,
        num_indirect_probes: NonZeroUsize::new(3).expect("a constant above 0"),
        max_transmissions: NonZeroU8::new(settings.transmissions_max.max(1)).expect("at least 1"),
        suspect_to_down_after: least(settings.suspect_time),
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(message_bytes).expect("at least 249"),
        notify_down_members: true,
        periodic_announce: every(least(settings.announce_period), 1),
        periodic_announce_to_down_members: every(least(settings.announce_to_down_period), 1),
        periodic_gossip: every(least(settings.gossip_period), 3),
    }
}

impl Membership {
    pub(crate) fn new(
        settings: &Settings,
        me: &NodeName,
        incarnation: u64,
        roster: &Roster,
        seed: u64,
        now: Time,
    ) -> Self {
        let my_id = name_hash(me);
        let mut known = Vec::with_capacity(roster.members().len() + 1);
        let mut by_id = Map::default();
        let outsider = roster.get(me).is_none().then(|| (me.clone(), my_id));
        for (name, id) in roster.hashes().chain(outsider) {
            let index = u16::try_from(known.len()).expect("a roster has at most 65,534 nodes");
            let of_me = if id == my_id { incarnation } else { 0 };
            let identity = Identity { id, incarnation: of_me, renewal: 0, left: false };
            known.push(Known { name, id, identity, state: MemberState::NeverSeen, since: now });
            by_id.entry(id).or_insert(index);
        }
        let my_index = by_id[&my_id];
        known[usize::from(my_index)].state = MemberState::Alive;
        let identity = known[usize::from(my_index)].identity;
        let cluster = wire::cluster(&settings.cluster_name);
        let mut membership = Self {
            foca: Foca::new(identity, config(settings), Random::new(seed ^ my_id), Codec),
            cluster,
            known,
            by_id,
            me: my_index,
            alive: vec![(my_id, my_index)],
            alarms: BinaryHeap::new(),
            alarms_set: 0,
            random: Random::new(seed.rotate_left(32) ^ my_id),
            said: Said { prefix: wire::prefix(cluster, Kind::Gossip), ..Said::default() },
            left: false,
            join_at: now,
            join_period: JOIN_PERIOD,
            join_period_max: settings.announce_to_down_period.max(JOIN_PERIOD),
            suspect_time: settings.suspect_time,
            sends: VecDeque::new(),
            events: VecDeque::new(),
            garbage: 0,
            understood: 0,
        };
        membership.set(now, Due::Join);
        membership
    }

    /// Lets a node be a member that was not in the list. False: it is in it, or one more cannot be.
    pub(crate) fn add(&mut self, now: Time, name: &NodeName) -> bool {
        let id = name_hash(name);
        let Ok(index) = MemberIndex::try_from(self.known.len()) else { return false };
        if index == MemberIndex::MAX || self.by_id.contains_key(&id) {
            return false;
        }
        let identity = Identity { id, incarnation: 0, renewal: 0, left: false };
        let state = MemberState::NeverSeen;
        self.known.push(Known { name: name.clone(), id, identity, state, since: now });
        self.by_id.insert(id, index);
        self.join_period = JOIN_PERIOD;
        self.join_at = now;
        true
    }

    pub(crate) fn receive(&mut self, now: Time, bytes: &[u8]) {
        if self.left {
            return;
        }
        match self.handle(now, bytes) {
            Ok(()) => self.understood += 1,
            Err(wire::Malformed) => self.garbage += 1,
        }
        self.settle(now);
    }

    fn handle(&mut self, now: Time, bytes: &[u8]) -> Result<(), wire::Malformed> {
        let (kind, mut body) = wire::open(self.cluster, bytes)?;
        match kind {
            Kind::Gossip => {
                let by_id = &self.by_id;
                let Some(body) = wire::checked(body, |id| by_id.contains_key(&id))? else {
                    return Ok(());
                };
                let sender = wire::get_identity(&mut &body[..])?;
                let handled = self.foca.handle_data(&body, &mut self.said);
                self.tell_of_later_life(&sender);
                handled.map_err(|_| wire::Malformed)
            }
            Kind::LaterLife => {
                let life = wire::get_identity(&mut body)?;
                if !body.is_empty() || life.id != self.foca.identity().id {
                    return Err(wire::Malformed);
                }
                self.outlive(&life);
                Ok(())
            }
            Kind::Accusation => {
                let accuser = wire::get_identity(&mut body)?;
                let accused = foca::Codec::decode_member(&mut Codec, &mut body)?;
                if !body.is_empty() || !self.by_id.contains_key(&accuser.id) {
                    return Err(wire::Malformed);
                }
                if accused.id() == self.foca.identity() && accused.state() == State::Suspect {
                    // Raises the own incarnation; any message carries it. This one goes at once
                    // to who needs it.
                    let _ = self.foca.apply_many([accused].into_iter(), true, &mut self.said);
                    let _ = self.foca.announce(accuser, &mut self.said);
                }
                Ok(())
            }
            Kind::GoodBye => {
                let mut gone = wire::get_identity(&mut body)?;
                let of_me = gone.id == self.foca.identity().id;
                if !body.is_empty() || of_me || !self.by_id.contains_key(&gone.id) {
                    return Err(wire::Malformed);
                }
                gone.left = true;
                let down = foca::Member::new(gone, 0, State::Down);
                let _ = self.foca.apply_many([down].into_iter(), true, &mut self.said);
                let _ = now;
                Ok(())
            }
        }
    }

    /// Tells a sender whose life began before one that was heard of: its clock went back while it
    /// was down, and as it is nobody would take it for alive.
    fn tell_of_later_life(&mut self, sender: &Identity) {
        let Some(&index) = self.by_id.get(&sender.id) else { return };
        let later = self.known[usize::from(index)].identity;
        if index != self.me && later.incarnation > sender.incarnation {
            let mut bytes = wire::prefix(self.cluster, Kind::LaterLife).to_vec();
            wire::put_identity(&later, &mut bytes);
            self.sends.push_back((index, bytes));
        }
    }

    /// Begins a life after this one, if it is of this node and later than the present one.
    fn outlive(&mut self, life: &Identity) {
        let incarnation = life.incarnation.checked_add(1);
        let is_later = life.incarnation > self.foca.identity().incarnation;
        let Some(incarnation) = incarnation.filter(|_| is_later) else { return };
        let identity = Identity { id: life.id, incarnation, renewal: 0, left: false };
        // Errors: what could not be sent now is said again with the next message.
        let _ = self.foca.change_identity(identity, &mut self.said);
        self.known[usize::from(self.me)].identity = identity;
        self.events.push_back(Event::Rejoined);
        self.join_period = JOIN_PERIOD;
        self.join_at = Time::ZERO;
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Time) {
        while let Some(Reverse(Alarm(at, ..))) = self.alarms.peek() {
            if *at > now || self.left {
                break;
            }
            let Some(Reverse(Alarm(_, _, due))) = self.alarms.pop() else { break };
            match due {
                // Errors: a probe that was cut short because the node was paused. It goes on.
                Due::Foca(timer) => drop(self.foca.handle_timer(timer, &mut self.said)),
                Due::Join => {
                    if self.join_at <= now {
                        self.join(now);
                    }
                    self.set(now + JOIN_PERIOD, Due::Join);
                }
                Due::Accuse { suspect, incarnation, left } => {
                    self.accuse(now, suspect, incarnation, left);
                }
            }
            self.settle(now);
        }
    }

    /// When something is due; `None` after the node left.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let next = self.alarms.peek().map(|Reverse(Alarm(at, ..))| *at);
        next.filter(|_| !self.left)
    }

    /// Calls nodes that are not heard of: some of them, and each is called by some in a round,
    /// however many nodes there are.
    fn join(&mut self, now: Time) {
        let absent = (self.known.len() - self.alive.len()) as u64;
        let callers = self.alive.len() as u64;
        let least = absent.max(callers);
        let calls = JOIN_CALLS.max(absent / JOIN_SHARE);
        for index in 0..self.known.len() {
            let known = &self.known[index];
            let absent = !matches!(known.state, MemberState::Alive | MemberState::Suspect);
            if absent && (least <= calls || self.random.below(least) < calls) {
                let _ = self.foca.announce(known.identity, &mut self.said);
            }
        }
        self.join_at = now + self.join_period;
        self.join_period = (self.join_period * 2).min(self.join_period_max);
    }

    /// Tells a suspect of its suspicion, while it is one.
    fn accuse(&mut self, now: Time, suspect: Identity, incarnation: u16, left: u32) {
        let state = self.foca.iter_membership_state().find(|member| *member.id() == suspect);
        let Some(member) = state.filter(|member| member.state() == State::Suspect) else { return };
        if member.incarnation() != incarnation {
            return;
        }
        let Some(&to) = self.by_id.get(&suspect.id) else { return };
        let mut bytes = wire::prefix(self.cluster, Kind::Accusation).to_vec();
        wire::put_identity(self.foca.identity(), &mut bytes);
        if foca::Codec::encode_member(&mut Codec, member, &mut bytes).is_ok() {
            self.sends.push_back((to, bytes));
        }
        if left > 1 {
            let pause = self.suspect_time / ACCUSATIONS;
            self.set(now + pause, Due::Accuse { suspect, incarnation, left: left - 1 });
        }
    }

    fn set(&mut self, at: Time, due: Due) {
        self.alarms_set += 1;
        self.alarms.push(Reverse(Alarm(at, self.alarms_set, due)));
    }

    /// Takes over what `foca` said, and what it says to that.
    fn settle(&mut self, now: Time) {
        while !self.said.is_empty() {
            self.take_over(now);
        }
    }

    fn take_over(&mut self, now: Time) {
        for (to, bytes) in std::mem::take(&mut self.said.sends) {
            if let Some(&to) = self.by_id.get(&to.id) {
                self.sends.push_back((to, bytes));
            }
        }
        for (timer, after) in std::mem::take(&mut self.said.timers) {
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                let (suspect, incarnation) = (*member_id, *incarnation);
                self.set(now, Due::Accuse { suspect, incarnation, left: ACCUSATIONS });
            }
            self.set(now + after, Due::Foca(timer));
        }
        for note in std::mem::take(&mut self.said.notes) {
            match note {
                Note::Up(identity) => self.turn(now, identity, MemberState::Alive),
                Note::Down(identity) if identity.left => {
                    self.turn(now, identity, MemberState::Left);
                }
                Note::Down(identity) => self.turn(now, identity, MemberState::Down),
                Note::Renamed(old, new) => self.renamed(now, old, new),
                Note::Rejoined => {
                    let me = usize::from(self.me);
                    self.known[me].identity = *self.foca.identity();
                    self.events.push_back(Event::Rejoined);
                    // foca waits for a message before it probes again; if all that it knows died
                    // meanwhile, none would come.
                    let nobody = std::iter::empty();
                    let _ = self.foca.apply_many(nobody, false, &mut self.said);
                }
            }
        }
    }

    /// A member comes back under another identity, maybe before it was missed.
    fn renamed(&mut self, now: Time, old: Identity, new: Identity) {
        let Some(&index) = self.by_id.get(&new.id) else { return };
        let known = &mut self.known[usize::from(index)];
        let was_alive = known.state == MemberState::Alive;
        known.identity = new;
        if was_alive && old.incarnation != new.incarnation {
            known.since = now;
            self.events.push_back(Event::Down(index));
            self.events.push_back(Event::Up(index));
        }
    }

    fn turn(&mut self, now: Time, identity: Identity, state: MemberState) {
        let Some(&index) = self.by_id.get(&identity.id) else { return };
        let known = &mut self.known[usize::from(index)];
        let was_alive = known.state == MemberState::Alive;
        let is_alive = state == MemberState::Alive;
        known.identity = Identity { left: false, ..identity };
        if known.state != state {
            known.state = state;
            known.since = now;
        }
        if was_alive != is_alive {
            if is_alive {
                self.alive.push((identity.id, index));
                self.events.push_back(Event::Up(index));
            } else {
                self.alive.retain(|&(_, other)| other != index);
                self.events.push_back(Event::Down(index));
            }
            // Where one comes or goes, others may.
            self.join_period = JOIN_PERIOD;
            self.join_at = self.join_at.min(now + JOIN_PERIOD);
        }
    }

    /// Says good-bye to all members. Nothing is heard or said after it.
    pub(crate) fn leave(&mut self, now: Time) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        let mut bytes = wire::prefix(self.cluster, Kind::GoodBye).to_vec();
        wire::put_identity(self.foca.identity(), &mut bytes);
        // Few members cannot tell each other what the network lost.
        let copies = if self.alive.len() <= 64 { 3 } else { 1 };
        for _ in 0..copies {
            for &(_, index) in &self.alive {
                if index != self.me {
                    self.sends.push_back((index, bytes.clone()));
                }
            }
        }
        let me = &mut self.known[usize::from(self.me)];
        me.state = MemberState::Left;
        me.since = now;
        let me = self.me;
        self.alive.retain(|&(_, index)| index != me);
    }

    pub(crate) const fn me(&self) -> MemberIndex {
        self.me
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.foca.identity().incarnation
    }

    /// Living members: hash of the name and place. This node is one of them until it leaves.
    pub(crate) fn alive(&self) -> &[(u64, MemberIndex)] {
        &self.alive
    }

    pub(crate) fn is_alive(&self, index: MemberIndex) -> bool {
        index == self.me || self.known[usize::from(index)].state == MemberState::Alive
    }

    /// The latest life of a member that was heard of.
    pub(crate) fn life(&self, index: MemberIndex) -> Life {
        let Identity { incarnation, renewal, .. } = self.known[usize::from(index)].identity;
        Life { incarnation, renewal }
    }

    pub(crate) fn name(&self, index: MemberIndex) -> &NodeName {
        &self.known[usize::from(index)].name
    }

    pub(crate) fn id(&self, index: MemberIndex) -> u64 {
        self.known[usize::from(index)].id
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<MemberIndex> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn index(&self, name: &NodeName) -> Option<MemberIndex> {
        let index = self.by_id(name_hash(name))?;
        (self.name(index) == name).then_some(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Living members and those that are down for less than `grace`.
    pub(crate) fn owners(
        &self,
        now: Time,
        grace: Duration,
    ) -> impl Iterator<Item = (u64, MemberIndex)> {
        let missed = move |known: &Known| {
            known.state == MemberState::Down && now.saturating_sub(known.since) < grace
        };
        let missing = (0..).zip(&self.known).filter(move |(_, known)| missed(known));
        self.alive.iter().copied().chain(missing.map(|(index, known)| (known.id, index)))
    }

    /// All nodes of the list, in its order.
    pub(crate) fn view(&self) -> Vec<MemberView> {
        let suspects: Vec<u64> = (self.foca.iter_membership_state())
            .filter(|member| member.state() == State::Suspect)
            .map(|member| member.id().id)
            .collect();
        let view = |known: &Known| MemberView {
            name: known.name.clone(),
            state: match known.state {
                MemberState::Alive if suspects.contains(&known.id) => MemberState::Suspect,
                state => state,
            },
            incarnation: known.identity.incarnation,
            since: known.since,
        };
        self.known.iter().map(view).collect()
    }
}
