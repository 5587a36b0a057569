//! The residency map of one file: its runs of blocks drawn as lines of characters.

use tidepool_proto::residency::{ResidencyRun, ResidencyState};
use tidepool_terminal::output::{Colour, coloured, count, size};

/// Characters on one line.
const LINE: usize = 64;
/// Most characters of a map. A file of more blocks has several of them in one character.
const CHARACTERS_MAX: u64 = 16 * LINE as u64;
/// Characters for shares of resident blocks, from none to all.
const SHARES: [char; 6] = [' ', '.', ':', '-', '=', '#'];

/// What stands behind one character.
#[derive(Clone, Copy, Default)]
struct Cell {
    blocks: u64,
    resident: u64,
    unlisted: u64,
}

/// The map with its legend, in lines that start with their offset. No runs, no lines.
pub fn lines(runs: &[ResidencyRun], block_bytes: u64) -> Vec<String> {
    let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
    if blocks == 0 {
        return Vec::new();
    }
    let scale = blocks.div_ceil(CHARACTERS_MAX);
    let mut lines = vec![coloured(&legend(runs, scale, block_bytes), Colour::Faint)];
    let characters: Vec<char> = match scale {
        1 => single(runs).collect(),
        _ => cells(runs, blocks, scale).into_iter().map(share).collect(),
    };
    for (number, line) in characters.chunks(LINE).enumerate() {
        let offset = size((number * LINE) as u64 * scale * block_bytes);
        let line: String = line.iter().collect();
        // A space stands for a share, so it is told from the end of the line.
        let edge = if scale == 1 { "" } else { "|" };
        lines.push(format!("{offset:>10}  {edge}{line}{edge}"));
    }
    lines
}

fn legend(runs: &[ResidencyRun], scale: u64, block_bytes: u64) -> String {
    let unlisted = runs.iter().any(|run| run.state == ResidencyState::Unlisted);
    let unlisted = if unlisted { ", ? not told: too scattered" } else { "" };
    if scale == 1 {
        return format!("blocks (. absent, c clean, d dirty, m memory only{unlisted})");
    }
    let mut of_state = String::new();
    for (state, name) in [
        (ResidencyState::Clean, "clean"),
        (ResidencyState::Dirty, "dirty"),
        (ResidencyState::MemoryOnly, "memory only"),
    ] {
        let blocks: u64 = runs.iter().filter(|run| run.state == state).map(|run| run.blocks).sum();
        if blocks > 0 {
            of_state += &format!(", {blocks} {name}");
        }
    }
    let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
    format!(
        "{}{of_state}\na character is {scale} of them, {}; the share in memory: blank none, . up \
         to 25 %, : 50 %, - 75 %, = less than all, # all{unlisted}",
        count(blocks, "block"),
        size(scale.saturating_mul(block_bytes)),
    )
}

/// One character a block.
fn single(runs: &[ResidencyRun]) -> impl Iterator<Item = char> {
    runs.iter().flat_map(|run| {
        let character = match run.state {
            ResidencyState::Absent => '.',
            ResidencyState::Clean => 'c',
            ResidencyState::Dirty => 'd',
            ResidencyState::MemoryOnly => 'm',
            ResidencyState::Unlisted => '?',
        };
        std::iter::repeat_n(character, run.blocks as usize)
    })
}

/// Sums runs up over cells of `scale` blocks; the last cell may have fewer.
fn cells(runs: &[ResidencyRun], blocks: u64, scale: u64) -> Vec<Cell> {
    let mut cells = vec![Cell::default(); blocks.div_ceil(scale) as usize];
    let mut at = 0;
    for run in runs {
        let end = at + run.blocks;
        while at < end {
            let cell = &mut cells[(at / scale) as usize];
            let part = end.min((at / scale + 1) * scale) - at;
            cell.blocks += part;
            cell.resident += if run.state.is_resident() { part } else { 0 };
            cell.unlisted += if run.state == ResidencyState::Unlisted { part } else { 0 };
            at += part;
        }
    }
    cells
}

/// One resident block of many shows, and one absent block as well.
fn share(cell: Cell) -> char {
    match cell {
        Cell { unlisted: 1.., .. } => '?',
        Cell { resident: 0, .. } => SHARES[0],
        Cell { resident, blocks, .. } if resident == blocks => SHARES[5],
        Cell { resident, blocks, .. } => {
            let quarters = (u128::from(resident) * 4).div_ceil(u128::from(blocks));
            SHARES[(quarters as usize).clamp(1, 4)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(state: ResidencyState, blocks: u64) -> ResidencyRun {
        ResidencyRun { state, blocks }
    }

    use ResidencyState::{Absent, Clean, Dirty, MemoryOnly, Unlisted};

    #[test]
    fn a_small_file_has_a_character_a_block() {
        assert!(lines(&[], 4 << 20).is_empty());
        let runs = [run(Clean, 2), run(Absent, 61), run(Dirty, 1), run(MemoryOnly, 3)];
        let map = lines(&runs, 4 << 20);
        assert!(map[0].contains(". absent, c clean"), "{map:?}");
        assert_eq!(map[1], format!("{:>10}  cc{}d", "0B", ".".repeat(61)));
        assert_eq!(map[2], format!("{:>10}  mmm", "256MiB"));
        assert_eq!(lines(&[run(Clean, CHARACTERS_MAX)], 4 << 20).len(), 17);
    }

    #[test]
    fn a_file_of_any_size_is_drawn_whole() {
        // 100 GiB: 25 blocks a character.
        let blocks = (100 << 30) / (4 << 20);
        let runs = [
            run(Clean, 1),
            run(Absent, 24),
            run(Clean, 25),
            run(Absent, 12_000),
            run(Dirty, 13),
            run(Absent, blocks - 12_063 - 24),
            run(Clean, 24),
        ];
        let map = lines(&runs, 4 << 20);
        assert!(map[0].contains("25600 blocks, 50 clean, 13 dirty"), "{map:?}");
        assert!(map[0].contains("a character is 25 of them, 100MiB"), "{map:?}");
        assert_eq!(map.len(), 17, "{map:?}");
        assert_eq!(map[1], format!("{:>10}  |.#{}|", "0B", " ".repeat(62)));
        let drawn: String = map[1..].iter().filter_map(|line| line.split('|').nth(1)).collect();
        assert_eq!(drawn.len(), 1024);
        assert_eq!(
            drawn.char_indices().filter(|(_, it)| *it != ' ').collect::<Vec<_>>(),
            [(0, '.'), (1, '#'), (482, '-'), (1023, '='),]
        );
        for blocks in [1025, 1 << 20, (1 << 41) + 3] {
            let map = lines(&[run(Absent, blocks - 1), run(Clean, 1)], 4 << 20);
            let last = map.last().unwrap();
            assert!(map.len() <= 17 && last.ends_with('|'), "{last}");
            assert!(!last.trim_end_matches('|').ends_with(' '), "{last}");
        }
    }

    #[test]
    fn what_a_message_could_not_carry_is_named() {
        let map = lines(&[run(Clean, 9), run(Unlisted, 5000)], 4 << 20);
        assert!(map[0].contains("? not told"), "{map:?}");
        assert!(map[1].starts_with(&format!("{:>10}  |#?", "0B")), "{map:?}");
    }
}
