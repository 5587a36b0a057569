//! The table against a plain map, and its memory account against what it has.

use std::collections::BTreeMap;

use crate::hash;
use crate::random::Random;
use crate::table::{Table, Version};

type Model = BTreeMap<u64, (Version, BTreeMap<(u32, u16), u16>)>;

const fn version(number: i64) -> Version {
    Version { ctime_ns: number, tag: 7 }
}

fn compare(table: &Table, model: &Model, keys: &[u64]) {
    let mut entries = 0;
    for &key in keys {
        for number in 0..4 {
            let mut found = BTreeMap::new();
            table.file(key, version(number), |chunk, member, bits| {
                assert!(found.insert((chunk, member), bits).is_none());
                true
            });
            let known = model.get(&key).filter(|(known, _)| *known == version(number));
            assert_eq!(found, known.map(|(_, holders)| holders.clone()).unwrap_or_default());
            for chunk in 0..5 {
                let mut by_chunk = Vec::new();
                let each = |member, bits| by_chunk.push(((chunk, member), bits));
                table.chunk(key, version(number), chunk, each);
                let of_chunk = found.iter().filter(|((other, _), _)| *other == chunk);
                assert_eq!(by_chunk, of_chunk.map(|(&at, &bits)| (at, bits)).collect::<Vec<_>>());
            }
            entries += found.values().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
        }
    }
    assert_eq!(table.entries(), entries);
    assert_eq!(table.files(), model.len());
}

fn step(table: &mut Table, model: &mut Model, random: &mut Random, key: u64) {
    let member = random.below(4) as u16;
    match random.below(100) {
        0..70 => {
            let number = random.below(4) as i64;
            let chunk = random.below(5) as u32;
            let bits = if random.below(3) == 0 { 0 } else { random.next() as u16 };
            let known = model.get(&key).map(|(known, _)| *known);
            let older = known.is_some_and(|known| version(number) < known);
            assert_eq!(table.set(key, version(number), member, chunk, bits), !older);
            if older || known.is_none() && bits == 0 {
                return;
            }
            let file = model.entry(key).or_insert((version(number), BTreeMap::new()));
            if file.0 != version(number) {
                *file = (version(number), BTreeMap::new());
            }
            if bits == 0 {
                file.1.remove(&(chunk, member));
            } else {
                file.1.insert((chunk, member), bits);
            }
        }
        70..95 => {
            table.forget(key, member);
            if let Some((_, holders)) = model.get_mut(&key) {
                holders.retain(|&(_, other), _| other != member);
            }
        }
        95..97 => {
            table.retain_members(|other| other != member);
            for (_, holders) in model.values_mut() {
                holders.retain(|&(_, other), _| other != member);
            }
        }
        _ => {
            let mut cursor = Some(crate::table::Cursor::default());
            while let Some(at) = cursor {
                cursor = table.sweep(at, 7, |other| other % 11 != key % 11);
            }
            model.retain(|other, _| other % 11 != key % 11);
        }
    }
    model.retain(|_, (_, holders)| !holders.is_empty());
}

#[test]
fn the_table_is_a_map_of_holders() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let files = [3, 40, 600][(seed % 3) as usize];
        // Few shards, so that slots crowd and wrap around.
        let keys: Vec<u64> = (1..=files).map(|n| hash::mix(n) | 0xFC << 56).collect();
        let mut table = Table::new(1 << 30);
        let mut model = Model::new();
        for round in 0..2_000 {
            let key = keys[random.below(files) as usize];
            step(&mut table, &mut model, &mut random, key);
            if round % 500 == 499 {
                compare(&table, &model, &keys);
            }
        }
        table.retain_members(|_| false);
        assert_eq!((table.entries(), table.files()), (0, 0));
        assert!(table.bytes() < 16 << 10, "{} bytes of nothing", table.bytes());
    }
}

#[test]
fn a_file_of_many_holders_and_chunks_stays_in_order() {
    let mut table = Table::new(1 << 30);
    let mut random = Random::new(5);
    let mut model = BTreeMap::new();
    for _ in 0..40_000 {
        let (chunk, member) = (random.below(300) as u32, random.below(40) as u16);
        let bits = random.below(4) as u16;
        table.set(9, version(1), member, chunk, bits);
        match bits {
            0 => drop(model.remove(&(chunk, member))),
            _ => drop(model.insert((chunk, member), bits)),
        }
    }
    let mut found = Vec::new();
    table.file(9, version(1), |chunk, member, bits| {
        found.push(((chunk, member), bits));
        true
    });
    assert_eq!(found, model.clone().into_iter().collect::<Vec<_>>());
    for chunk in 0..300 {
        let mut holders = Vec::new();
        table.chunk(9, version(1), chunk, |member, bits| holders.push((member, bits)));
        let of_chunk = model.range((chunk, 0)..(chunk + 1, 0));
        assert_eq!(
            holders,
            of_chunk.map(|(&(_, member), &bits)| (member, bits)).collect::<Vec<_>>()
        );
    }
    table.retain_members(|_| false);
    assert_eq!((table.entries(), table.files()), (0, 0));
}
