//! What a node does as the home of files: it takes announcements and answers lookups.

use std::time::Duration;

use crate::hash;
use crate::membership::{MemberIndex, Membership};
use crate::message::{
    Action, Announcer, Asked, BlockAnswer, FileAnswer, Garbage, HOLDERS_MAX, News, NewsReader,
    Outcome, PlanAnswer, RUNS_MAX, RunAnswer,
};
use crate::readers::{Question, Readers};
use crate::table::{Cursor, Table, Version};
use crate::{CHUNK_BLOCKS, Settings, Time};

/// How long after a change of members the home forgets files of which it is none any more: until
/// then all nodes know of the change, and have told the new home.
const SETTLE: Duration = Duration::from_secs(10);
/// Slots that are looked at in one step of the sweep, and the pause between two steps.
const SWEEP_SLOTS: usize = 1_024;
/// See [`SWEEP_SLOTS`].
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// What was heard of a member.
#[derive(Clone, Copy, Default)]
struct Heard {
    announcer: Option<Announcer>,
    /// Announcements heard in all when it announced last.
    epoch: u64,
    /// It has announced something since it was forgotten.
    told: bool,
}

/// The files of which this node is the home.
pub(crate) struct Home {
    pub table: Table,
    readers: Readers,
    heard: Vec<Heard>,
    /// Announcements heard.
    epoch: u64,
    sweep_at: Option<Time>,
    sweep: Option<Cursor>,
    sweep_step_at: Time,
    /// Announcements of files of which this node is not the home.
    pub misdirected: u64,
}

impl Home {
    pub(crate) fn new(settings: &Settings, members: usize) -> Self {
        Self {
            table: Table::new(settings.max_entries_bytes),
            readers: Readers::new(settings.reader_ttl, settings.readers_max),
            heard: vec![Heard::default(); members],
            epoch: 0,
            sweep_at: None,
            sweep: None,
            sweep_step_at: Time::ZERO,
            misdirected: 0,
        }
    }

    /// The list has one member more.
    pub(crate) fn add_member(&mut self) {
        self.heard.push(Heard::default());
    }

    /// A member is down or came back: what it held is forgotten.
    pub(crate) fn forget_member(&mut self, member: MemberIndex) {
        let heard = &mut self.heard[usize::from(member)];
        heard.announcer = None;
        if std::mem::take(&mut heard.told) {
            self.table.retain_members(|other| other != member);
        }
    }

    /// Members came: files may have moved to other homes. A sweep waits until no more come.
    pub(crate) fn schedule_sweep(&mut self, now: Time) {
        self.sweep = None;
        self.sweep_at = Some(now + SETTLE);
    }

    /// Forgets files that moved, some at a time.
    pub(crate) fn tick(&mut self, now: Time, members: &Membership) {
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = None;
            self.sweep = Some(Cursor::default());
        }
        if let Some(cursor) = self.sweep {
            let me = members.me();
            self.sweep = self.table.sweep(cursor, SWEEP_SLOTS, |key| is_home(members, me, key));
        }
        self.sweep_step_at = now + SWEEP_PAUSE;
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        self.sweep.map(|_| self.sweep_step_at).into_iter().chain(self.sweep_at).min()
    }

    /// Takes an announcement of a member.
    pub(crate) fn announced(
        &mut self,
        now: Time,
        members: &Membership,
        from: MemberIndex,
        announcer: Announcer,
        mut news: NewsReader<'_>,
    ) -> Result<Outcome, Garbage> {
        // What an earlier life says would be forgotten again; a later one is not known to live.
        let lives = members.is_alive(from) && members.life(from) == announcer.life;
        if from == members.me() || !lives {
            return Ok(Outcome::NotMember);
        }
        let heard = &mut self.heard[usize::from(from)];
        let last = heard.announcer.filter(|last| last.life == announcer.life);
        if last.is_some_and(|last| last.number >= announcer.number) {
            return Ok(Outcome::Late);
        }
        heard.announcer = Some(announcer);
        let mut chunks = Vec::new();
        self.epoch += 1;
        let mut misdirected = false;
        while let Some(news) = news.next(&mut chunks)? {
            misdirected |= self.apply(members, from, &news, &chunks);
        }
        self.heard[usize::from(from)].epoch = self.epoch;
        if misdirected {
            self.misdirected += 1;
            // The sender may know a member too few or one more. Either way time tells.
            self.schedule_sweep(now);
        }
        Ok(Outcome::Taken)
    }

    /// True when this node is not the home.
    fn apply(
        &mut self,
        members: &Membership,
        from: MemberIndex,
        news: &News,
        chunks: &[(u32, u16)],
    ) -> bool {
        let key = news.key;
        match news.action {
            Action::Reset => {
                if std::mem::take(&mut self.heard[usize::from(from)].told) {
                    self.table.retain_members(|other| other != from);
                }
                return false;
            }
            Action::Forget => self.table.forget(key, from),
            Action::NotHeld { holder, block, incarnation, epoch } => {
                if let Some(holder) = members.by_id(holder)
                    && incarnation == members.incarnation()
                {
                    self.not_held(key, news.version(), block, holder, epoch);
                }
                return false;
            }
            Action::Update | Action::Replace => {
                if news.action == Action::Replace {
                    self.table.forget(key, from);
                }
                if key != 0 {
                    self.put(from, key, news.version(), chunks);
                }
            }
        }
        !chunks.is_empty() && !is_home(members, members.me(), key)
    }

    /// Takes what a member holds of a file.
    pub(crate) fn put(
        &mut self,
        member: MemberIndex,
        key: u64,
        version: Version,
        chunks: &[(u32, u16)],
    ) {
        self.heard[usize::from(member)].told = true;
        let version = Version { tag: version.tag & 0xFFF, ..version };
        for &(chunk, bits) in chunks.iter().filter(|&&(chunk, _)| chunk <= CHUNK_MAX) {
            if !self.table.set(key, version, member, chunk, bits) {
                break;
            }
        }
    }

    /// This node holds other blocks of a file of which it is the home.
    pub(crate) fn put_own(
        &mut self,
        me: MemberIndex,
        key: u64,
        version: Version,
        chunks: &[(u32, u16)],
    ) {
        self.epoch += 1;
        self.heard[usize::from(me)].epoch = self.epoch;
        self.put(me, key, version, chunks);
    }

    /// A reader did not find a block. What the holder announced since then is newer.
    pub(crate) fn not_held(
        &mut self,
        key: u64,
        version: Version,
        block: u32,
        holder: MemberIndex,
        epoch: u64,
    ) {
        if self.heard[usize::from(holder)].epoch > epoch {
            return;
        }
        let (chunk, bit) = (block / CHUNK_BLOCKS, 1 << (block % CHUNK_BLOCKS));
        let mut before = 0;
        self.table.chunk(key, version, chunk, |member, bits| {
            if member == holder {
                before = bits;
            }
        });
        if before & bit != 0 {
            self.table.set(key, version, holder, chunk, before & !bit);
        }
    }

    /// Where the blocks of a chunk come from, the same for all who ask but for the choice among
    /// more than eight holders.
    pub(crate) fn plan(
        &mut self,
        now: Time,
        members: &Membership,
        asker: Option<MemberIndex>,
        asked: Asked,
    ) -> PlanAnswer {
        let Asked { key, chunk, .. } = asked;
        let mut holders: Vec<(MemberIndex, u16)> = Vec::new();
        self.table.chunk(key, asked.version(), chunk, |member, bits| {
            if members.is_alive(member) {
                holders.push((member, bits));
            }
        });
        self.table.touch(key);
        let held = holders.iter().fold(0, |held, &(_, bits)| held | bits);
        let asker = asker.filter(|&asker| members.is_alive(asker));
        let question = Question { key, version: asked.version(), chunk, asker, held };
        let living = |member| members.is_alive(member).then(|| members.id(member));
        let fillers = self.readers.ask(now, &question, living);
        let salt = asker.map_or(0, |asker| members.id(asker));
        let mut named: Vec<MemberIndex> = Vec::new();
        let mut place = |member| {
            let at = named.iter().position(|&other| other == member).unwrap_or_else(|| {
                named.push(member);
                named.len() - 1
            });
            u8::try_from(at).expect("16 blocks name at most 144 members")
        };
        let blocks = (0..CHUNK_BLOCKS).map(|index| {
            let of_block = holders.iter().filter(|(_, bits)| bits >> index & 1 == 1);
            let of_block: Vec<MemberIndex> = of_block.map(|&(member, _)| member).collect();
            let chosen = some_of(&of_block, hash::claim(salt, hash::part(key, index.into())));
            BlockAnswer {
                holders: chosen.map(&mut place).collect(),
                filler: fillers[index as usize].map(&mut place),
            }
        });
        let blocks = blocks.collect();
        let members_named = named.iter().map(|&member| members.id(member)).collect();
        let (incarnation, epoch) = (members.incarnation(), self.epoch);
        PlanAnswer { asked, incarnation, epoch, members: members_named, blocks }
    }

    /// Holders of the blocks of a whole file. Files of very many scattered blocks are cut.
    pub(crate) fn file(&self, members: &Membership, asked: Asked) -> FileAnswer {
        let mut named: Vec<MemberIndex> = Vec::new();
        let mut runs: Vec<RunAnswer> = Vec::new();
        let mut chunk_entries: Vec<(MemberIndex, u16)> = Vec::new();
        let mut current = None;
        self.table.file(asked.key, asked.version(), |chunk, member, bits| {
            if let Some(before) = current.filter(|&before| before != chunk) {
                add_runs(before, &chunk_entries, &mut runs, &mut named);
                chunk_entries.clear();
            }
            current = Some(chunk);
            if members.is_alive(member) {
                chunk_entries.push((member, bits));
            }
            runs.len() + CHUNK_BLOCKS as usize <= RUNS_MAX
        });
        if let Some(chunk) = current {
            add_runs(chunk, &chunk_entries, &mut runs, &mut named);
        }
        runs.truncate(RUNS_MAX);
        FileAnswer { members: named.iter().map(|&member| members.id(member)).collect(), runs }
    }
}

/// Last chunk of which all blocks have a number of 32 bits.
const CHUNK_MAX: u32 = u32::MAX / CHUNK_BLOCKS - 1;

/// Whether no living member has a higher claim to the file.
fn is_home(members: &Membership, me: MemberIndex, key: u64) -> bool {
    let mine = hash::claim(members.id(me), key);
    members.alive().iter().all(|&(id, _)| hash::claim(id, key) <= mine)
}

/// At most [`HOLDERS_MAX`] of them, others for others.
fn some_of(all: &[MemberIndex], salt: u64) -> impl Iterator<Item = MemberIndex> {
    let start = if all.len() > HOLDERS_MAX { salt as usize % all.len() } else { 0 };
    all.iter().cycle().skip(start).take(all.len().min(HOLDERS_MAX)).copied()
}

/// Appends the blocks of a chunk to runs.
fn add_runs(
    chunk: u32,
    entries: &[(MemberIndex, u16)],
    runs: &mut Vec<RunAnswer>,
    named: &mut Vec<MemberIndex>,
) {
    let mut place = |member| {
        let at = named.iter().position(|&other| other == member).unwrap_or_else(|| {
            named.push(member);
            named.len() - 1
        });
        u16::try_from(at).expect("fewer members than 65,536")
    };
    for index in 0..CHUNK_BLOCKS {
        let of_block = entries.iter().filter(|(_, bits)| bits >> index & 1 == 1);
        let holders: Vec<u16> =
            of_block.take(HOLDERS_MAX).map(|&(member, _)| place(member)).collect();
        if holders.is_empty() {
            continue;
        }
        let block = chunk * CHUNK_BLOCKS + index;
        match runs.last_mut() {
            Some(run) if run.first_block + run.count == block && run.holders == holders => {
                run.count += 1;
            }
            _ => runs.push(RunAnswer { first_block: block, count: 1, holders }),
        }
    }
}
