//! The whole state of one node in the cluster.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::holdings::{Change, Holdings, Moved};
use crate::home::Home;
use crate::membership::{Event, MemberIndex, Membership};
use crate::message::{
    self, Action, Asked, BlockAnswer, FileAnswer, Garbage, News, Outcome, PlanAnswer, Request,
    RunAnswer,
};
use crate::plan::{Plans, Remembered};
use crate::table::Version;
use crate::{
    BlockPlan, CHUNK_BLOCKS, ChunkPlan, Counters, FileKey, FileLookup, HolderRun, Lookup,
    MemberView, NodeName, Roster, Settings, SharedVersion, Time, hash,
};

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram; it may be lost.
    Datagram {
        /// To whom.
        to: NodeName,
        /// What, at most [`Settings::datagram_bytes_max`] bytes.
        bytes: Vec<u8>,
    },
    /// Send this request by the transport, then say [`ClusterNode::call_done`] or
    /// [`ClusterNode::call_failed`]. There is at most one call to a member at a time.
    Call {
        /// To whom.
        to: NodeName,
        /// What, at most 256 KiB.
        request: Vec<u8>,
    },
    /// A member came, or came back as another incarnation.
    Up(NodeName),
    /// A member is down or has left.
    Down(NodeName),
}

/// Blocks that one call to [`ClusterNode::hold`] names at most: 64 TiB.
const CALL_BLOCKS_MAX: u32 = 1 << 24;
/// How long a node with nothing to do waits for the next tick.
const IDLE: Time = Time::from_secs(1);

/// Membership and locations of one node.
///
/// After each call that changes something, [`Self::poll`] is called until it returns `None`, and
/// [`Self::tick`] when [`Self::next_due`] says so.
pub struct ClusterNode {
    members: Membership,
    home: Home,
    holdings: Holdings,
    plans: Plans,
    outputs: VecDeque<Output>,
    /// Latest time that was given.
    now: Time,
    owner_grace: Duration,
    /// Members to which this node announced something.
    told: Vec<bool>,
    counters: Counters,
}

impl ClusterNode {
    /// A node that knows the list and nobody yet.
    ///
    /// `incarnation` grows with each start of the node (the time of the start will do). The node
    /// need not be in the roster; then others ignore it. `seed` makes all choices.
    #[must_use]
    pub fn new(
        settings: Settings,
        me: NodeName,
        incarnation: u64,
        roster: &Roster,
        seed: u64,
        now: Time,
    ) -> Self {
        // 0 stands for lives that were not heard of.
        let members = Membership::new(&settings, &me, incarnation.max(1), roster, seed, now);
        Self {
            home: Home::new(&settings, members.len()),
            holdings: Holdings::new(&settings),
            plans: Plans::new(settings.plan_ttl, settings.plans_max),
            outputs: VecDeque::new(),
            now,
            owner_grace: settings.owner_grace,
            told: vec![false; members.len()],
            counters: Counters::default(),
            members,
        }
    }

    /// Lets a node be a member that was not in the list.
    pub fn add_member(&mut self, now: Time, name: &NodeName) {
        if self.members.add(now, name) {
            self.home.add_member();
            self.told.push(false);
        }
    }

    /// A membership datagram, already authenticated as sent by a holder of the key. Garbage is
    /// counted and ignored.
    pub fn receive(&mut self, now: Time, bytes: &[u8]) {
        let now = self.advance(now);
        self.members.receive(now, bytes);
        self.settle(now);
    }

    /// Does what is due. Returns when it wants to be called next at the latest.
    pub fn tick(&mut self, now: Time) -> Time {
        let now = self.advance(now);
        self.members.tick(now);
        self.settle(now);
        self.home.tick(now, &self.members);
        self.next_due()
    }

    /// When [`Self::tick`] has something to do, at the latest; other calls may change it.
    #[must_use]
    pub fn next_due(&self) -> Time {
        let dues = [self.members.next_due(), self.home.next_due(), self.holdings.next_due()];
        dues.into_iter().flatten().min().unwrap_or(self.now + IDLE)
    }

    /// What is to be done now; `None` when nothing is.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Answers a request of another node that came over the transport. Never panics.
    pub fn serve(&mut self, now: Time, from: &NodeName, request: &[u8]) -> Vec<u8> {
        let now = self.advance(now);
        let asker = self.members.index(from);
        match message::request(request) {
            Ok(Request::Announce(announcer, news)) => {
                let Some(from) = asker else { return message::announced(Outcome::NotMember) };
                match self.home.announced(now, &self.members, from, announcer, news) {
                    Ok(outcome) => {
                        self.counters.announcements_served += 1;
                        message::announced(outcome)
                    }
                    Err(Garbage) => self.refuse(),
                }
            }
            Ok(Request::Lookup(asked)) => {
                self.counters.lookups_served += 1;
                message::plan(&self.home.plan(now, &self.members, asker, asked))
            }
            Ok(Request::LookupFile(asked)) => {
                self.counters.lookups_served += 1;
                message::file(&self.home.file(&self.members, asked))
            }
            Err(Garbage) => self.refuse(),
        }
    }

    fn refuse(&mut self) -> Vec<u8> {
        self.counters.garbage_requests += 1;
        message::refused()
    }

    /// The sending of an [`Output::Call`] failed: what it said is announced again later, if the
    /// member is still one.
    pub fn call_failed(&mut self, now: Time, to: &NodeName) {
        let now = self.advance(now);
        self.counters.calls_failed += 1;
        if let Some(to) = self.members.index(to) {
            self.holdings.failed(now, to);
        }
        self.settle(now);
    }

    /// An [`Output::Call`] was answered.
    pub fn call_done(&mut self, now: Time, to: &NodeName, reply: &[u8]) {
        let now = self.advance(now);
        let Some(to) = self.members.index(to) else { return };
        match message::read_announced(reply) {
            Ok(Outcome::Taken) => self.holdings.taken(to),
            Ok(Outcome::NotMember | Outcome::Late) => {
                self.holdings.failed(now, to);
            }
            Err(Garbage) => {
                self.counters.garbage_replies += 1;
                self.holdings.failed(now, to);
            }
        }
        self.settle(now);
    }

    /// This node now holds these blocks of that version. Blocks of an older version than it holds
    /// are ignored; a newer version takes the place of the older.
    pub fn hold(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        first_block: u32,
        count: u32,
    ) {
        let now = self.advance(now);
        let (key, version) = (hash::file(file), known(&version));
        let chunks = chunks(first_block, count);
        if chunks.is_empty() {
            return;
        }
        let home = self.holdings.get(key).map_or_else(|| self.home_of(key), |held| held.home);
        let change = self.holdings.hold(key, version, home, &chunks);
        self.changed(now, home, key, change, &chunks);
    }

    /// This node holds these blocks of that version no more.
    pub fn release(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        first_block: u32,
        count: u32,
    ) {
        let now = self.advance(now);
        let chunks = chunks(first_block, count);
        let key = hash::file(file);
        let (change, home) = self.holdings.release(key, known(&version), &chunks);
        self.changed(now, home, key, change, &chunks);
    }

    /// This node holds nothing of the file any more.
    pub fn release_file(&mut self, now: Time, file: FileKey) {
        let now = self.advance(now);
        let key = hash::file(file);
        if let Some(home) = self.holdings.release_file(key) {
            self.changed(now, home, key, Change::All, &[]);
        }
    }

    /// Tells the home what changed, at once where this node is the home.
    fn changed(
        &mut self,
        now: Time,
        home: MemberIndex,
        key: u64,
        change: Change,
        chunks: &[(u32, u16)],
    ) {
        let numbers = || chunks.iter().map(|&(chunk, _)| chunk).collect::<Vec<u32>>();
        match change {
            Change::None => return,
            Change::All if home == self.members.me() => self.put_own(key),
            Change::Chunks if home == self.members.me() => {
                if let Some(held) = self.holdings.get(key) {
                    let states = held.states(&numbers());
                    self.home.put_own(home, key, held.version, &states);
                }
            }
            Change::All => self.holdings.tell(now, home, key, None),
            Change::Chunks => self.holdings.tell(now, home, key, Some(&numbers())),
        }
        self.settle(now);
    }

    /// This node is the home of a file: its table has what the node holds of it.
    fn put_own(&mut self, key: u64) {
        let me = self.members.me();
        self.home.table.forget(key, me);
        if let Some(held) = self.holdings.get(key) {
            self.home.put_own(me, key, held.version, &held.chunks);
        }
    }

    /// Where the blocks of a chunk come from.
    pub fn lookup(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        chunk: u32,
    ) -> Lookup {
        let now = self.advance(now);
        let (key, version) = (hash::file(file), known(&version));
        let me = self.members.me();
        let Version { ctime_ns, tag } = version;
        let asked = Asked { key, ctime_ns, tag, chunk };
        if let Some(remembered) = self.plans.get(now, key, version, chunk)
            && !remembered.own
        {
            self.counters.lookups_known += 1;
            return Lookup::Known(Arc::clone(&remembered.plan));
        }
        let home = self.home_of(key);
        if home != me {
            self.counters.lookups_asked += 1;
            let request = message::lookup(&asked);
            return Lookup::Ask { home: self.members.name(home).clone(), request };
        }
        self.counters.lookups_known += 1;
        let answer = self.home.plan(now, &self.members, Some(me), asked);
        Lookup::Known(self.remember(now, &answer, true))
    }

    /// Takes the home's reply to [`Lookup::Ask`]; `None` when it cannot be read.
    pub fn learn(&mut self, now: Time, home: &NodeName, reply: &[u8]) -> Option<Arc<ChunkPlan>> {
        let now = self.advance(now);
        // Whoever answers may be wrong: a plan costs a miss at the worst.
        let _ = home;
        match message::read_plan(reply) {
            Ok(answer) => Some(self.remember(now, &answer, false)),
            Err(Garbage) => {
                self.counters.garbage_replies += 1;
                None
            }
        }
    }

    fn remember(&mut self, now: Time, answer: &PlanAnswer, own: bool) -> Arc<ChunkPlan> {
        let me = self.members.me();
        let named = |at: &u8| {
            let index = self.members.by_id(*answer.members.get(usize::from(*at))?)?;
            let useful = index != me && self.members.is_alive(index);
            useful.then(|| self.members.name(index).clone())
        };
        let block = |block: &BlockAnswer| BlockPlan {
            holders: block.holders.iter().filter_map(named).collect(),
            filler: block.filler.as_ref().and_then(named),
        };
        let chunk = answer.asked.chunk;
        let blocks = answer.blocks.iter().map(block).collect();
        let plan = Arc::new(ChunkPlan { chunk, blocks });
        let remembered = Remembered {
            version: answer.asked.version(),
            plan: Arc::clone(&plan),
            at: now,
            incarnation: answer.incarnation,
            epoch: answer.epoch,
            own,
        };
        self.plans.insert(answer.asked.key, remembered);
        plan
    }

    /// A holder did not have the block after all: it is left out of the remembered plan, and the
    /// home is told with the next batch.
    pub fn not_held(&mut self, now: Time, file: FileKey, block: u32, holder: &NodeName) {
        let now = self.advance(now);
        let (key, chunk) = (hash::file(file), block / CHUNK_BLOCKS);
        let home = self.home_of(key);
        let Some(index) = self.members.index(holder) else { return };
        let Some(remembered) = self.plans.get_mut(now, key, chunk) else { return };
        let plan = Arc::make_mut(&mut remembered.plan);
        let holders = &mut plan.blocks[(block % CHUNK_BLOCKS) as usize].holders;
        holders.retain(|other| other != holder);
        let Remembered { version, incarnation, epoch, .. } = *remembered;
        if home == self.members.me() {
            if incarnation == self.members.incarnation() {
                self.home.not_held(key, version, block, index, epoch);
            }
            return;
        }
        let holder = self.members.id(index);
        let action = Action::NotHeld { holder, block, incarnation, epoch };
        let Version { ctime_ns, tag } = version;
        self.holdings.report(now, home, News { key, ctime_ns, tag, action, chunks: 0 });
        self.settle(now);
    }

    /// Whether the member counts as one now; this node always does.
    #[must_use]
    pub fn is_alive(&self, name: &NodeName) -> bool {
        self.members.index(name).is_some_and(|index| self.members.is_alive(index))
    }

    /// All members of the roster, in its order; this node last where the roster lacks it.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        self.members.view()
    }

    /// Stable owner of a split for schedulers. It moves only with members that come or go; a
    /// member that is down keeps its splits for [`Settings::owner_grace`].
    #[must_use]
    pub fn owner(&self, file: FileKey, split: u64) -> NodeName {
        let part = hash::part(hash::file(file), split);
        let owners = self.members.owners(self.now, self.owner_grace);
        self.members.name(self.best(owners, part)).clone()
    }

    /// Who would own the split if this node were gone; `None` where nobody else is alive.
    #[must_use]
    pub fn heir(&self, file: FileKey, split: u64) -> Option<NodeName> {
        let (me, part) = (self.members.me(), hash::part(hash::file(file), split));
        let others = self.members.alive().iter().copied().filter(|&(_, index)| index != me);
        let heir = self.best(others, part);
        (heir != me).then(|| self.members.name(heir).clone())
    }

    /// The other members that are alive, those first that are to hold copies of the file: the same
    /// order whichever node is asked.
    #[must_use]
    pub fn copy_holders(&self, file: FileKey) -> Vec<NodeName> {
        let (me, part) = (self.members.me(), hash::part(hash::file(file), hash::COPIES));
        let others = self.members.alive().iter().copied().filter(|&(_, index)| index != me);
        let mut claims: Vec<_> = others.map(|(id, index)| (hash::claim(id, part), index)).collect();
        claims.sort_unstable_by(|one, other| other.cmp(one));
        claims.into_iter().map(|(_, index)| self.members.name(index).clone()).collect()
    }

    /// The member that keeps the locations of the file.
    #[must_use]
    pub fn home(&self, file: FileKey) -> NodeName {
        self.members.name(self.home_of(hash::file(file))).clone()
    }

    fn home_of(&self, key: u64) -> MemberIndex {
        self.best(self.members.alive().iter().copied(), key)
    }

    fn best(&self, of: impl Iterator<Item = (u64, MemberIndex)>, key: u64) -> MemberIndex {
        let best = of.max_by_key(|&(id, _)| hash::claim(id, key));
        best.map_or(self.members.me(), |(_, index)| index)
    }

    /// Holders of each block of the whole file.
    pub fn lookup_file(&mut self, now: Time, file: FileKey, version: SharedVersion) -> FileLookup {
        self.advance(now);
        let key = hash::file(file);
        let Version { ctime_ns, tag } = known(&version);
        let asked = Asked { key, ctime_ns, tag, chunk: 0 };
        let home = self.home_of(key);
        if home == self.members.me() {
            self.counters.lookups_known += 1;
            return FileLookup::Known(self.runs(&self.home.file(&self.members, asked)));
        }
        self.counters.lookups_asked += 1;
        let request = message::lookup_file(&asked);
        FileLookup::Ask { home: self.members.name(home).clone(), request }
    }

    /// Takes the home's reply to [`FileLookup::Ask`]; `None` when it cannot be read.
    pub fn learn_file(
        &mut self,
        now: Time,
        home: &NodeName,
        reply: &[u8],
    ) -> Option<Vec<HolderRun>> {
        self.advance(now);
        let _ = home;
        match message::read_file(reply) {
            Ok(answer) => Some(self.runs(&answer)),
            Err(Garbage) => {
                self.counters.garbage_replies += 1;
                None
            }
        }
    }

    fn runs(&self, answer: &FileAnswer) -> Vec<HolderRun> {
        let named = |&at: &u16| {
            let index = self.members.by_id(*answer.members.get(usize::from(at))?)?;
            self.members.is_alive(index).then(|| self.members.name(index).clone())
        };
        let run = |run: &RunAnswer| {
            let holders: Vec<NodeName> = run.holders.iter().filter_map(named).collect();
            let RunAnswer { first_block, count, .. } = *run;
            (!holders.is_empty()).then_some(HolderRun { first_block, count, holders })
        };
        answer.runs.iter().filter_map(run).collect()
    }

    /// Says good-bye to the others; the messages follow by [`Self::poll`].
    pub fn leave(&mut self, now: Time) {
        let now = self.advance(now);
        self.members.leave(now);
        self.settle(now);
    }

    /// Counts and sizes.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            garbage_datagrams: self.members.garbage,
            datagrams_received: self.members.understood,
            misdirected: self.home.misdirected,
            files: self.home.table.files() as u64,
            entries: self.home.table.entries(),
            entry_bytes: self.home.table.bytes() as u64,
            files_forgotten: self.home.table.forgotten,
            held_files: self.holdings.files() as u64,
            ..self.counters
        }
    }

    /// Time never runs backwards here.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// Acts on changes of members, and puts out what is to be sent.
    fn settle(&mut self, now: Time) {
        while let Some(event) = self.members.events.pop_front() {
            match event {
                Event::Up(member) => self.member_up(now, member),
                Event::Down(member) => self.member_down(now, member),
                Event::Rejoined => {
                    let me = self.members.me();
                    let told = self.holdings.rehome(|_, home| (home != me).then_some(home));
                    self.tell_all(now, told);
                }
            }
        }
        while let Some((to, bytes)) = self.members.sends.pop_front() {
            self.counters.datagrams_sent += 1;
            self.counters.datagram_bytes_sent += bytes.len() as u64;
            let to = self.members.name(to).clone();
            self.outputs.push_back(Output::Datagram { to, bytes });
        }
        for (to, request) in self.holdings.calls(now, self.members.life(self.members.me())) {
            self.counters.announcements_sent += 1;
            self.told[usize::from(to)] = true;
            let to = self.members.name(to).clone();
            self.outputs.push_back(Output::Call { to, request });
        }
    }

    fn member_up(&mut self, now: Time, member: MemberIndex) {
        self.counters.ups += 1;
        self.outputs.push_back(Output::Up(self.members.name(member).clone()));
        self.home.schedule_sweep(now);
        if !self.members.is_alive(member) {
            // It went again; that is the next event.
            return;
        }
        if self.told[usize::from(member)] {
            // It may still have what this node told it before it was missed.
            self.holdings.reset(now, member);
        }
        let claim = |index: MemberIndex, key| hash::claim(self.members.id(index), key);
        let told = self.holdings.rehome(|key, home| {
            (home == member || claim(member, key) > claim(home, key)).then_some(member)
        });
        self.tell_all(now, told);
    }

    fn member_down(&mut self, now: Time, member: MemberIndex) {
        self.counters.downs += 1;
        self.outputs.push_back(Output::Down(self.members.name(member).clone()));
        self.home.forget_member(member);
        self.plans.clear();
        self.holdings.clear_queue(member);
        let (members, me) = (&self.members, self.members.me());
        let told = self.holdings.rehome(|key, home| {
            let alive = members.alive().iter();
            let best = || alive.max_by_key(|&&(id, _)| hash::claim(id, key));
            (home == member).then(|| best().map_or(me, |&(_, index)| index))
        });
        self.tell_all(now, told);
    }

    /// Homes have to be told all that is held of these files, and homes that were to forget them:
    /// they may be homes again before they look.
    fn tell_all(&mut self, now: Time, files: Vec<Moved>) {
        let me = self.members.me();
        for Moved { key, from, to } in files {
            if from != to && from == me {
                self.home.table.forget(key, me);
            } else if from != to && self.members.is_alive(from) {
                self.holdings.tell(now, from, key, None);
            }
            if to == me {
                self.put_own(key);
            } else {
                self.holdings.tell(now, to, key, None);
            }
        }
    }
}

/// A version as tables know it.
const fn known(version: &SharedVersion) -> Version {
    Version { ctime_ns: version.ctime_ns, tag: hash::tag(version) }
}

/// Blocks in a row as chunks and their blocks.
fn chunks(first_block: u32, count: u32) -> Vec<(u32, u16)> {
    let end = first_block.saturating_add(count.min(CALL_BLOCKS_MAX));
    let mut chunks = Vec::new();
    let mut block = first_block;
    while block < end {
        let chunk = block / CHUNK_BLOCKS;
        let first = block % CHUNK_BLOCKS;
        let blocks = (end - block).min(CHUNK_BLOCKS - first);
        let bits = u16::try_from(((1_u32 << blocks) - 1) << first).expect("16 bits");
        chunks.push((chunk, bits));
        block += blocks;
    }
    chunks
}
