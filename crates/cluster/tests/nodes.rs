//! Nodes among each other: plans, fillers, versions, owners, garbage, and the bound on memory.

#[expect(dead_code, reason = "the simulation uses more of it")]
#[path = "simulation/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidepool_cluster::{
    CHUNK_BLOCKS, ChunkPlan, ClusterNode, FileKey, FileLookup, Lookup, MemberState, NodeName,
    Settings, SharedVersion,
};
use world::World;

fn file(inode: u64) -> FileKey {
    FileKey { inode, generation: 1 }
}

fn version(number: i64) -> SharedVersion {
    SharedVersion { size: 1 << 32, mtime_ns: number, ctime_ns: number }
}

fn cluster(count: usize, settings: Settings) -> World {
    let mut world = World::new(count, settings, 11);
    (0..count).for_each(|node| world.start(node));
    world.run_for(Duration::from_secs(2));
    world
}

fn plan(world: &mut World, node: usize, inode: u64, number: i64, chunk: u32) -> Arc<ChunkPlan> {
    let look = |node: &mut ClusterNode, now| node.lookup(now, file(inode), version(number), chunk);
    match world.act(node, look).expect("running") {
        Lookup::Known(plan) => plan,
        Lookup::Ask { home, request } => {
            let from = world.hosts[node].name.clone();
            let to = world.index(&home);
            let reply = world.act(to, |home, now| home.serve(now, &from, &request)).unwrap();
            world.act(node, |node, now| node.learn(now, &home, &reply)).flatten().expect("a plan")
        }
    }
}

/// A file whose home is the node.
fn file_at(world: &World, node: usize) -> u64 {
    let asked = world.hosts[node].node.as_ref().expect("running");
    (1..).find(|&inode| asked.home(file(inode)) == world.hosts[node].name).expect("some file")
}

#[test]
fn four_readers_of_a_cold_file_fill_a_quarter_each() {
    let mut world = cluster(4, Settings::default());
    let mut filled: BTreeMap<usize, u32> = BTreeMap::new();
    for chunk in 0..40 {
        let mut told: BTreeSet<Vec<usize>> = BTreeSet::new();
        for node in 0..4 {
            let plan = plan(&mut world, node, 9, 1, chunk);
            assert_eq!(plan.blocks.len(), CHUNK_BLOCKS as usize);
            let fillers = plan.blocks.iter();
            let filler = |name: &NodeName| world.index(name);
            told.insert(fillers.map(|block| block.filler.as_ref().map_or(node, filler)).collect());
        }
        assert_eq!(told.len(), 1, "all are told the same");
        let fillers = told.pop_first().unwrap();
        if chunk == 0 {
            assert_eq!(fillers, [0; 16], "the first reader was alone");
        } else {
            fillers.iter().for_each(|&filler| *filled.entry(filler).or_default() += 1);
        }
        world.run_for(Duration::from_millis(100));
    }
    let quarter = 39 * CHUNK_BLOCKS / 4;
    for count in filled.values() {
        assert!((quarter * 3 / 4..quarter * 5 / 4).contains(count), "{filled:?}");
    }
}

#[test]
fn a_lone_reader_fills_itself_and_a_dead_filler_is_replaced() {
    let mut world = cluster(3, Settings::default());
    let inode = file_at(&world, 2);
    let alone = plan(&mut world, 0, inode, 1, 0);
    assert!(alone.blocks.iter().all(|block| block.filler.is_none()), "{alone:?}");
    let second = plan(&mut world, 1, inode, 1, 0);
    let first = world.hosts[0].name.clone();
    assert!(second.blocks.iter().all(|block| block.filler.as_ref() == Some(&first)));
    world.crash(0);
    world.run_for(Duration::from_secs(4));
    let third = plan(&mut world, 1, inode, 1, 0);
    assert!(third.blocks.iter().all(|block| block.filler.is_none()), "{third:?}");
}

#[test]
fn held_blocks_name_holders_and_a_newer_version_wins() {
    let mut world = cluster(3, Settings::default());
    let inode = file_at(&world, 2);
    world.act(0, |node, now| node.hold(now, file(inode), version(5), 3, 40));
    world.run_for(Duration::from_millis(100));
    let known = plan(&mut world, 1, inode, 5, 0);
    for (block, at) in known.blocks.iter().zip(0..) {
        assert_eq!(block.holders.len(), usize::from(at >= 3), "block {at}");
        assert!(at < 3 || block.filler.is_none(), "a held block needs no filler");
    }
    let older = plan(&mut world, 1, inode, 4, 1);
    assert!(older.blocks.iter().all(|block| block.holders.is_empty()));
    world.act(1, |node, now| node.hold(now, file(inode), version(4), 0, 40));
    world.run_for(Duration::from_millis(100));
    assert_eq!(plan(&mut world, 1, inode, 5, 1).blocks[0].holders, [world.hosts[0].name.clone()]);
    world.act(1, |node, now| node.hold(now, file(inode), version(6), 17, 1));
    world.run_for(Duration::from_millis(100));
    let newer = plan(&mut world, 0, inode, 6, 1);
    assert_eq!(newer.blocks[1].holders, [world.hosts[1].name.clone()]);
    assert!(newer.blocks[2].holders.is_empty(), "blocks of the older version are forgotten");
    world.act(1, |node, now| node.release(now, file(inode), version(6), 0, 64));
    world.run_for(Duration::from_millis(100));
    let counters = world.act(2, |node, _| node.counters()).unwrap();
    assert_eq!((counters.entries, counters.files), (0, 0));
}

#[test]
fn a_block_that_was_not_held_leaves_the_plan_and_the_home() {
    let mut world = cluster(3, Settings::default());
    let inode = file_at(&world, 2);
    world.act(0, |node, now| node.hold(now, file(inode), version(1), 0, 4));
    world.run_for(Duration::from_millis(100));
    let holder = world.hosts[0].name.clone();
    assert_eq!(plan(&mut world, 1, inode, 1, 0).blocks[2].holders, std::slice::from_ref(&holder));
    world.act(1, |node, now| node.not_held(now, file(inode), 2, &holder));
    assert!(plan(&mut world, 1, inode, 1, 0).blocks[2].holders.is_empty());
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.act(2, |node, _| node.counters()).unwrap().entries, 3);
    // What the holder says after the plan was made is newer than the report.
    plan(&mut world, 1, inode, 1, 0);
    world.run_for(Duration::from_secs(3));
    plan(&mut world, 1, inode, 1, 0);
    world.act(0, |node, now| node.hold(now, file(inode), version(1), 2, 1));
    world.run_for(Duration::from_millis(100));
    world.act(1, |node, now| node.not_held(now, file(inode), 1, &holder));
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.act(2, |node, _| node.counters()).unwrap().entries, 4);
}

#[test]
fn plans_name_at_most_eight_holders_and_others_to_others() {
    let mut world = cluster(14, Settings::default());
    let inode = file_at(&world, 13);
    for node in 0..12 {
        world.act(node, |node, now| node.hold(now, file(inode), version(1), 0, 1));
    }
    world.run_for(Duration::from_millis(100));
    let mut named: BTreeSet<NodeName> = BTreeSet::new();
    for node in 0..13 {
        let plan = plan(&mut world, node, inode, 1, 0);
        let holders = &plan.blocks[0].holders;
        assert!((7..=8).contains(&holders.len()), "{holders:?}");
        assert!(!holders.contains(&world.hosts[node].name));
        named.extend(holders.iter().cloned());
    }
    assert_eq!(named.len(), 12);
}

#[test]
fn owners_move_with_members_only_and_wait_for_one_that_is_down() {
    let settings = Settings { owner_grace: Duration::from_secs(60), ..Settings::default() };
    let mut world = cluster(5, settings);
    let owners = |world: &World| -> Vec<NodeName> {
        let node = world.hosts[0].node.as_ref().expect("running");
        (0..200).map(|split| node.owner(file(3), split)).collect()
    };
    let before = owners(&world);
    let distinct: BTreeSet<&NodeName> = before.iter().collect();
    assert_eq!(distinct.len(), 5, "all members own something");
    let victim = world.hosts[4].name.clone();
    world.crash(4);
    world.run_for(Duration::from_secs(30));
    assert_eq!(owners(&world), before, "a short absence moves nothing");
    world.run_for(Duration::from_secs(60));
    let after = owners(&world);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before == after, *before != victim, "only the splits of the lost member move");
    }
    world.start(4);
    world.run_for(Duration::from_secs(6));
    assert_eq!(owners(&world), before);
}

#[test]
fn who_leaves_is_known_to_have_left() {
    let mut world = cluster(3, Settings::default());
    world.act(2, ClusterNode::leave);
    world.crash(2);
    world.run_for(Duration::from_millis(10));
    for node in 0..2 {
        let views = world.hosts[node].node.as_ref().unwrap().members();
        assert_eq!(views[2].state, MemberState::Left, "node {node}");
    }
    world.start(2);
    world.run_for(Duration::from_secs(1));
    let views = world.hosts[0].node.as_ref().unwrap().members();
    assert_eq!((views[2].state, views[2].incarnation), (MemberState::Alive, 2));
}

#[test]
fn nodes_outside_the_roster_and_other_clusters_are_not_heard() {
    let mut world = cluster(2, Settings::default());
    let now = world.now;
    let name = |text: &str| NodeName::new(text).unwrap();
    let other = Settings { cluster_name: "other".into(), ..Settings::default() };
    for (settings, who) in [(Settings::default(), "stranger"), (other, "n2")] {
        let mut node = ClusterNode::new(settings, name(who), 9, &world.roster, 1, now);
        node.tick(now);
        let mut said = 0;
        while let Some(output) = node.poll() {
            if let tidepool_cluster::Output::Datagram { to, bytes } = output
                && to.as_str() == "n1"
            {
                said += 1;
                world.act(0, |node, now| node.receive(now, &bytes));
            }
        }
        assert!(said > 0, "{who} calls");
    }
    let views = world.hosts[0].node.as_ref().unwrap().members();
    assert_eq!(views.len(), 2);
    assert_eq!(views[1].incarnation, 1, "the member of the same name is the one of this cluster");
}

#[test]
fn memory_is_bounded_and_the_oldest_files_go_first() {
    let most = 256 << 10;
    let settings = Settings { max_entries_bytes: most, ..Settings::default() };
    let mut world = cluster(1, settings);
    for inode in 0..40_000 {
        let blocks = 1 + (inode % 50) as u32;
        world.act(0, |node, now| node.hold(now, file(inode), version(1), 0, blocks));
        let counters = world.act(0, |node, _| node.counters()).unwrap();
        assert!(counters.entry_bytes <= most as u64, "{} bytes", counters.entry_bytes);
    }
    let mut known = |inode| {
        let look = |node: &mut ClusterNode, now| node.lookup_file(now, file(inode), version(1));
        matches!(world.act(0, look), Some(FileLookup::Known(runs)) if !runs.is_empty())
    };
    let newest = (39_000..40_000).filter(|&inode| known(inode)).count();
    let oldest = (0..1_000).filter(|&inode| known(inode)).count();
    assert!(newest > 900, "{newest} of the newest 1,000");
    assert_eq!(oldest, 0);
    let forgotten = world.act(0, |node, _| node.counters()).unwrap().files_forgotten;
    assert!(forgotten > 10_000, "{forgotten}");
}

#[test]
fn a_large_announcement_goes_in_parts_and_arrives_whole() {
    let mut world = cluster(2, Settings::default());
    let inode = file_at(&world, 1);
    // More chunks than a call takes, and every second block: the worst case of the map.
    for block in (0..160_000).step_by(2) {
        world.act(0, |node, now| node.hold(now, file(inode), version(1), block, 1));
    }
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.act(1, |node, _| node.counters()).unwrap().entries, 80_000);
    world.act(0, |node, now| node.release_file(now, file(inode)));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.act(1, |node, _| node.counters()).unwrap().entries, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Real messages, cut and changed, and plain garbage: nothing panics, nothing grows.
    #[test]
    fn garbage_is_counted_and_forgotten(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        cut in 0_usize..200,
        flip in 0_usize..200,
        bit in 0_u8..8,
    ) {
        let mut world = cluster(2, Settings::default());
        let from = world.hosts[0].name.clone();
        let inode = file_at(&world, 1);
        let look = |node: &mut ClusterNode, now| node.lookup(now, file(inode), version(1), 0);
        let Some(Lookup::Ask { request, home }) = world.act(0, look) else { panic!("a request") };
        let reply = world.act(1, |node, now| node.serve(now, &from, &request)).unwrap();
        for message in [noise, request, reply] {
            let mut broken = message.clone();
            broken.truncate(cut);
            if let Some(byte) = broken.get_mut(flip % message.len().max(1)) {
                *byte ^= 1 << bit;
            }
            world.act(1, |node, now| node.receive(now, &broken));
            world.act(1, |node, now| node.serve(now, &from, &broken));
            world.act(0, |node, now| node.learn(now, &home, &broken));
            world.act(0, |node, now| node.learn_file(now, &home, &broken));
            world.act(0, |node, now| node.call_done(now, &home, &broken));
        }
        let views = world.hosts[1].node.as_ref().unwrap().members();
        prop_assert_eq!(views[0].state, MemberState::Alive);
        let counters = world.act(1, |node, _| node.counters()).unwrap();
        prop_assert!(counters.entry_bytes <= 64 << 10);
    }
}

/// A node whose clock went back by hours while it was down is a member again, and what it held in
/// its earlier life is forgotten.
#[test]
fn a_node_that_starts_with_an_earlier_clock_comes_back() {
    for down in [Duration::from_millis(100), Duration::from_secs(10)] {
        let mut world = cluster(3, Settings::default());
        world.crash(1);
        world.hosts[1].life = 1_000_000;
        world.start(1);
        world.run_for(Duration::from_secs(10));
        let inode = file_at(&world, 2);
        world.act(1, |node, now| node.hold(now, file(inode), version(5), 0, 4));
        world.run_for(Duration::from_millis(100));
        world.crash(1);
        world.run_for(down);
        world.hosts[1].life = 10;
        world.start(1);
        world.run_for(Duration::from_secs(20));
        for (node, other) in [(0, 1), (2, 1), (1, 0), (1, 2)] {
            let name = world.hosts[other].name.clone();
            let alive = world.act(node, |node, _| node.is_alive(&name)).unwrap();
            assert!(alive, "{node} misses {other} after {down:?}");
        }
        let counters = world.act(2, |node, _| node.counters()).unwrap();
        assert_eq!(counters.entries, 0, "what it held is forgotten");
    }
}
