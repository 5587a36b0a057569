//! Requests between nodes and their replies: a version byte, a kind, then `postcard`.
//!
//! Nothing is allocated by a length that a message states before the message was seen to be as
//! long.

use serde::{Deserialize, Serialize};

use crate::CHUNK_BLOCKS;
use crate::table::Version;

/// Version of requests and replies.
const VERSION: u8 = 1;
/// Longest request, bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Longest reply, bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 1 << 20;
/// Longest reply about a chunk, bytes.
const PLAN_BYTES_MAX: usize = 16 << 10;
/// Holders of a block that a plan names at most.
pub(crate) const HOLDERS_MAX: usize = 8;
/// Runs of an answer about a whole file at most.
pub(crate) const RUNS_MAX: usize = 8_192;

/// Not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbage;

const ANNOUNCE: u8 = 1;
const LOOKUP: u8 = 2;
const LOOKUP_FILE: u8 = 3;
const ANNOUNCED: u8 = 65;
const PLAN: u8 = 66;
const FILE: u8 = 67;
const REFUSED: u8 = 68;

/// A chunk that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub key: u64,
    pub ctime_ns: i64,
    pub tag: u16,
    /// 0 where the whole file is asked for.
    pub chunk: u32,
}

impl Asked {
    pub(crate) const fn version(&self) -> Version {
        Version { ctime_ns: self.ctime_ns, tag: self.tag }
    }
}

/// A life of a member: from its start, or from when it was declared dead by mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    pub incarnation: u64,
    pub renewal: u16,
}

/// Which life of a member announces, and how many announcements it made so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcer {
    pub life: Life,
    pub number: u64,
}

/// What an announcement does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    /// The sender holds nothing of which the receiver is the home.
    Reset,
    /// The sender holds exactly these blocks of these chunks, as before of others.
    Update,
    /// The sender holds these blocks, and no others of the file.
    Replace,
    /// The sender holds nothing of the file.
    Forget,
    /// A holder that a plan named did not have the block.
    NotHeld {
        /// Hash of its name.
        holder: u64,
        /// The block.
        block: u32,
        /// Life of the home that made the plan.
        incarnation: u64,
        /// What the home had heard then.
        epoch: u64,
    },
}

/// One file in an announcement; pairs of chunk and blocks follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct News {
    pub key: u64,
    pub ctime_ns: i64,
    pub tag: u16,
    pub action: Action,
    /// Pairs that follow.
    pub chunks: u32,
}

impl News {
    pub(crate) const fn version(&self) -> Version {
        Version { ctime_ns: self.ctime_ns, tag: self.tag }
    }
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// Taken.
    Taken,
    /// The sender is no living member for the receiver: say it again later.
    NotMember,
    /// A later one came before it.
    Late,
}

/// A block in the answer about a chunk; numbers are places in the list of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockAnswer {
    pub holders: Vec<u8>,
    pub filler: Option<u8>,
}

/// Answer about a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanAnswer {
    pub asked: Asked,
    /// Life of the home.
    pub incarnation: u64,
    /// What the home had heard.
    pub epoch: u64,
    /// Hashes of names.
    pub members: Vec<u64>,
    pub blocks: Vec<BlockAnswer>,
}

/// Blocks in a row with the same holders, as places in the list of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunAnswer {
    pub first_block: u32,
    pub count: u32,
    pub holders: Vec<u16>,
}

/// Answer about a whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileAnswer {
    pub members: Vec<u64>,
    pub runs: Vec<RunAnswer>,
}

/// A request as it came; the news of an announcement are read one by one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Announce(Announcer, NewsReader<'a>),
    Lookup(Asked),
    LookupFile(Asked),
}

/// The news of an announcement that are left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewsReader<'a>(&'a [u8]);

impl NewsReader<'_> {
    /// The next news; `chunks` becomes its pairs of chunk and blocks.
    pub(crate) fn next(&mut self, chunks: &mut Vec<(u32, u16)>) -> Result<Option<News>, Garbage> {
        chunks.clear();
        if self.0.is_empty() {
            return Ok(None);
        }
        let (news, mut rest) = postcard::take_from_bytes::<News>(self.0).map_err(|_| Garbage)?;
        if news.chunks as usize > rest.len() / 2 {
            return Err(Garbage);
        }
        for _ in 0..news.chunks {
            let (pair, after) = postcard::take_from_bytes(rest).map_err(|_| Garbage)?;
            chunks.push(pair);
            rest = after;
        }
        self.0 = rest;
        Ok(Some(news))
    }
}

/// Reads a request.
pub(crate) fn request(bytes: &[u8]) -> Result<Request<'_>, Garbage> {
    let (kind, body) = body(bytes, REQUEST_BYTES_MAX)?;
    match kind {
        ANNOUNCE => {
            let (announcer, rest) = postcard::take_from_bytes(body).map_err(|_| Garbage)?;
            Ok(Request::Announce(announcer, NewsReader(rest)))
        }
        LOOKUP => Ok(Request::Lookup(whole(body)?)),
        LOOKUP_FILE => Ok(Request::LookupFile(whole(body)?)),
        _ => Err(Garbage),
    }
}

pub(crate) fn lookup(asked: &Asked) -> Vec<u8> {
    encode(LOOKUP, asked)
}

pub(crate) fn lookup_file(asked: &Asked) -> Vec<u8> {
    encode(LOOKUP_FILE, asked)
}

/// An announcement without news.
pub(crate) fn announcement(announcer: Announcer) -> Vec<u8> {
    encode(ANNOUNCE, &announcer)
}

/// Appends news to an announcement. `news.chunks` is the number of `chunks`.
pub(crate) fn append(bytes: Vec<u8>, news: &News, chunks: &[(u32, u16)]) -> Vec<u8> {
    debug_assert_eq!(news.chunks as usize, chunks.len());
    let extended = |value: Result<Vec<u8>, postcard::Error>| value.expect("a Vec takes all");
    let bytes = extended(postcard::to_extend(news, bytes));
    chunks.iter().fold(bytes, |bytes, pair| extended(postcard::to_extend(pair, bytes)))
}

pub(crate) fn announced(outcome: Outcome) -> Vec<u8> {
    encode(ANNOUNCED, &outcome)
}

pub(crate) fn plan(answer: &PlanAnswer) -> Vec<u8> {
    encode(PLAN, answer)
}

pub(crate) fn file(answer: &FileAnswer) -> Vec<u8> {
    encode(FILE, answer)
}

/// The reply to a request that could not be read.
pub(crate) fn refused() -> Vec<u8> {
    vec![VERSION, REFUSED]
}

pub(crate) fn read_announced(bytes: &[u8]) -> Result<Outcome, Garbage> {
    read(ANNOUNCED, bytes, 64)
}

pub(crate) fn read_plan(bytes: &[u8]) -> Result<PlanAnswer, Garbage> {
    let answer: PlanAnswer = read(PLAN, bytes, PLAN_BYTES_MAX)?;
    let members = answer.members.len();
    let valid = |block: &BlockAnswer| {
        let mut places = block.holders.iter().chain(&block.filler);
        block.holders.len() <= HOLDERS_MAX && places.all(|&at| (at as usize) < members)
    };
    let complete = answer.blocks.len() == CHUNK_BLOCKS as usize;
    if complete && answer.blocks.iter().all(valid) { Ok(answer) } else { Err(Garbage) }
}

pub(crate) fn read_file(bytes: &[u8]) -> Result<FileAnswer, Garbage> {
    let answer: FileAnswer = read(FILE, bytes, REPLY_BYTES_MAX)?;
    let members = answer.members.len();
    let valid = |run: &RunAnswer| {
        run.count > 0
            && run.first_block.checked_add(run.count).is_some()
            && (1..=HOLDERS_MAX).contains(&run.holders.len())
            && run.holders.iter().all(|&at| (at as usize) < members)
    };
    if answer.runs.len() <= RUNS_MAX && answer.runs.iter().all(valid) {
        Ok(answer)
    } else {
        Err(Garbage)
    }
}

fn encode(kind: u8, value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION, kind]).expect("a Vec takes all")
}

fn read<'a, T: Deserialize<'a>>(kind: u8, bytes: &'a [u8], most: usize) -> Result<T, Garbage> {
    match body(bytes, most)? {
        (found, body) if found == kind => whole(body),
        _ => Err(Garbage),
    }
}

fn body(bytes: &[u8], most: usize) -> Result<(u8, &[u8]), Garbage> {
    match bytes {
        [VERSION, kind, body @ ..] if bytes.len() <= most => Ok((*kind, body)),
        _ => Err(Garbage),
    }
}

fn whole<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Garbage> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Garbage),
    }
}
