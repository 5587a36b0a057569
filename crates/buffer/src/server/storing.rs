//! Changes of one item, as memcached makes them.

use std::sync::Arc;
use std::time::Duration;

use crate::memory::{Full, Item, Memory, Room, Slot, Value};
use crate::protocol::{Arithmetic, Mode};

/// Longest number.
pub const NUMBER_BYTES_MAX: usize = 20;

/// How a value is to be stored.
#[derive(Clone, Debug)]
pub struct Change {
    /// How.
    pub mode: Mode,
    /// Only in the place of the item with this number.
    pub cas: Option<u64>,
    /// Where that number is an older one, store it all the same, as stale.
    pub is_invalidating: bool,
    /// Number that it is to have.
    pub new_cas: Option<u64>,
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub expires: Expires,
    /// Where bytes are added to nothing: store them, to expire so.
    pub vivify: Option<Expires>,
    /// The key came in base64.
    pub is_key_binary: bool,
    /// The PFS does not have it.
    pub is_owed: bool,
}

/// When something expires, since the start of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// Never.
    Never,
    /// Then.
    At(Duration),
}

impl Expires {
    /// What an item says of it.
    pub fn for_item(self) -> Option<Duration> {
        match self {
            Expires::Never => None,
            Expires::At(at) => Some(at),
        }
    }
}

/// What became of a change.
#[derive(Clone, Debug)]
pub enum Changed {
    /// It is made; the number and the value now.
    Made(u64, Arc<Value>),
    /// There was an item, or none.
    NotStored,
    /// It has another number.
    Exists,
    /// There is none.
    NotFound,
}

/// How a number changes.
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    /// Up or down.
    pub arithmetic: Arithmetic,
    /// How far.
    pub delta: u64,
    /// Only of the item with this number.
    pub cas: Option<u64>,
    /// Number that it is to have.
    pub new_cas: Option<u64>,
    /// When it expires from now on.
    pub expires: Option<Expires>,
    /// Where there is none: begin with this, to expire so.
    pub vivify: Option<(u64, Expires)>,
    /// The key came in base64.
    pub is_key_binary: bool,
}

/// What became of a number.
#[derive(Clone, Debug)]
pub enum Counted {
    /// It is this now; the item as it is.
    Is(u64, Item),
    /// It has another number.
    Exists,
    /// There is none.
    NotFound,
    /// The value is no number.
    NoNumber,
}

/// Stores a value.
///
/// # Errors
/// No room for both, where bytes are added.
pub fn store(memory: &Memory, key: &[u8], change: &Change, value: Value) -> Result<Changed, Full> {
    let value = Arc::new(value);
    let adds = matches!(change.mode, Mode::Append | Mode::Prepend);
    loop {
        if adds && let Some(changed) = add(memory, key, change, &value)? {
            return Ok(changed);
        }
        let changed = memory.with(key, |slot| match adds && slot.peek().is_some() {
            true => None, // it came in this moment
            false => Some(put(memory, slot, change, value.clone())),
        });
        if let Some(changed) = changed {
            return Ok(changed);
        }
    }
}

fn put(memory: &Memory, slot: &mut Slot<'_>, change: &Change, value: Arc<Value>) -> Changed {
    let is_add = change.mode == Mode::Add;
    let found = if is_add { slot.touch() } else { slot.peek() };
    let (mut is_stale, mut expires) = (false, change.expires.for_item());
    match (found, change.cas) {
        (Some(_), _) if is_add => return Changed::NotStored,
        (Some(item), Some(cas)) if cas != item.cas => {
            if !(change.is_invalidating && cas < item.cas) {
                return Changed::Exists;
            }
            (is_stale, expires) = (true, item.expires);
        }
        (None, _) if matches!(change.mode, Mode::Append | Mode::Prepend) => match change.vivify {
            Some(vivify) if change.cas.is_none() => expires = vivify.for_item(),
            _ => return Changed::NotStored,
        },
        (None, Some(_)) if !is_add => return Changed::NotFound,
        (None, None) if change.mode == Mode::Replace => return Changed::NotStored,
        _ => {}
    }
    let cas = change.new_cas.unwrap_or_else(|| memory.next_cas());
    slot.put(Item {
        value: value.clone(),
        flags: change.flags,
        expires,
        cas,
        accessed: slot.now(),
        is_hit: false,
        is_stale,
        is_won: is_stale,
        is_key_binary: change.is_key_binary,
        is_owed: change.is_owed,
    });
    Changed::Made(cas, value)
}

/// Adds bytes to an item; `None` where there is none.
fn add(
    memory: &Memory,
    key: &[u8],
    change: &Change,
    added: &Value,
) -> Result<Option<Changed>, Full> {
    loop {
        let found = memory.with(key, |slot| slot.peek().map(|it| (it.cas, it.value.clone())));
        let Some((cas, there)) = found else { return Ok(None) };
        if change.cas.is_some_and(|wanted| wanted != cas) {
            return Ok(Some(Changed::Exists));
        }
        let parts = match change.mode {
            Mode::Append => [there.bytes(), added.bytes()],
            _ => [added.bytes(), there.bytes()],
        };
        let room = memory.take_room(parts[0].len() + parts[1].len(), Duration::ZERO)?;
        let value = Arc::new(Value::new(parts.concat(), room));
        let changed = memory.with(key, |slot| {
            let item = slot.peek().filter(|item| item.cas == cas)?.clone();
            let cas = change.new_cas.unwrap_or_else(|| memory.next_cas());
            let (value_now, accessed) = (value.clone(), slot.now());
            let fresh = Item { is_hit: false, is_stale: false, is_won: false, accessed, ..item };
            slot.put(Item { value: value_now, cas, ..fresh });
            Some(Changed::Made(cas, value))
        });
        if changed.is_some() {
            return Ok(changed);
        }
    }
}

/// Changes a number. `room` is for its longest form.
pub fn count(memory: &Memory, key: &[u8], counting: &Counting, room: Room) -> Counted {
    memory.with(key, |slot| {
        let next_cas = || counting.new_cas.unwrap_or_else(|| memory.next_cas());
        let Some(item) = slot.touch() else {
            let Some((first, expires)) = counting.vivify else { return Counted::NotFound };
            let item = Item {
                value: Arc::new(Value::new(first.to_string().into_bytes(), room)),
                flags: 0,
                expires: expires.for_item(),
                cas: next_cas(),
                accessed: slot.now(),
                is_hit: false,
                is_stale: false,
                is_won: false,
                is_key_binary: counting.is_key_binary,
                is_owed: false,
            };
            slot.put(item.clone());
            return Counted::Is(first, item);
        };
        if counting.cas.is_some_and(|cas| cas != item.cas) {
            return Counted::Exists;
        }
        let Some(number) = number_of(item.value.bytes()) else { return Counted::NoNumber };
        let number = match counting.arithmetic {
            Arithmetic::Increment => number.wrapping_add(counting.delta),
            Arithmetic::Decrement => number.saturating_sub(counting.delta),
        };
        let mut item = item.clone();
        // A number keeps its place, with blanks behind it.
        let bytes = format!("{number:<width$}", width = item.value.bytes().len()).into_bytes();
        item.value = Arc::new(Value::new(bytes, room));
        item.cas = next_cas();
        if let Some(expires) = counting.expires {
            item.expires = expires.for_item();
        }
        slot.put(item.clone());
        Counted::Is(number, item)
    })
}

/// The number that a value is; blanks may be behind it.
fn number_of(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > NUMBER_BYTES_MAX {
        return None;
    }
    let digits = bytes.split(u8::is_ascii_whitespace).next()?;
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}
