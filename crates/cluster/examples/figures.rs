//! Figures of membership and locations in virtual clusters: how soon a crash is noticed, false
//! alarms, memory of an entry, announcements after members leave, processor time of a lookup.
//!
//! `cargo run --release -p tidepool-cluster --example figures [PART...]`, parts `detection`,
//! `alarms`, `memory`, `homes`, `lookups`; without one all. `FIGURES_CPU_SECONDS` bounds `alarms`.

#[expect(dead_code, reason = "the simulation uses more of it")]
#[path = "../tests/simulation/world.rs"]
mod world;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidepool_cluster::{ClusterNode, FileKey, Lookup, Settings, SharedVersion};
use world::World;

const VERSION: SharedVersion = SharedVersion { size: 40 << 20, mtime_ns: 1, ctime_ns: 2 };

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn file(index: u64) -> FileKey {
    FileKey { inode: 1_000_000 + index, generation: 1 }
}

/// A cluster of which all members know all.
fn formed(count: usize, settings: Settings, seed: u64) -> World {
    let mut world = World::new(count, settings, seed);
    (0..count).for_each(|node| world.start(node));
    let begun = world.now;
    while !is_complete(&world) {
        world.run_for(Duration::from_millis(50));
        assert!(world.now - begun < Duration::from_secs(60), "the cluster does not form");
    }
    println!(
        "  {count} members: all know all after {:.2} s, {:.0} datagrams a member",
        (world.now - begun).as_secs_f64(),
        world.datagrams as f64 / count as f64
    );
    world
}

fn is_complete(world: &World) -> bool {
    let nodes = world.hosts.iter().filter_map(|host| host.node.as_ref());
    let running = nodes.clone().count() as u64;
    nodes.into_iter().all(|node| {
        let counters = node.counters();
        counters.ups - counters.downs == running - 1
    })
}

fn quantile(sorted: &[f64], of: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * of).round() as usize]
}

fn detection() {
    println!("detection of a crash, seconds (delay 0.1 to 0.5 ms, loss 0 and 1 %):");
    for (count, rounds) in [(4, 500), (50, 200), (1_000, 20)] {
        for loss in [0, 10] {
            let mut world = formed(count, Settings::default(), 1);
            world.network.loss = loss;
            let (mut each, mut last) = (Vec::new(), Vec::new());
            let mut missed = 0;
            for round in 0..rounds {
                let victim = round % count;
                world.run_for(Duration::from_millis(2_000 + (round as u64 * 37) % 300));
                let begun = world.now;
                world.notices.clear();
                world.crash(victim);
                world.run_for(Duration::from_secs(6));
                let noticed =
                    (world.notices.iter()).filter(|notice| notice.member == victim && !notice.up);
                let times: Vec<f64> =
                    noticed.map(|notice| (notice.at - begun).as_secs_f64()).collect();
                missed += (count - 1).abs_diff(times.len());
                last.push(times.iter().copied().fold(0.0, f64::max));
                each.extend(times);
                world.start(victim);
            }
            each.sort_by(f64::total_cmp);
            last.sort_by(f64::total_cmp);
            println!(
                "  {count} members, loss {} %: a member p50 {:.2} p99 {:.2}; \
                 the last p50 {:.2} p99 {:.2} max {:.2}; {rounds} crashes, missed {missed}",
                loss as f64 / 10.0,
                quantile(&each, 0.5),
                quantile(&each, 0.99),
                quantile(&last, 0.5),
                quantile(&last, 0.99),
                quantile(&last, 1.0),
            );
        }
    }
}

fn alarms() {
    let seconds: f64 = std::env::var("FIGURES_CPU_SECONDS")
        .map_or(300.0, |text| text.parse().expect("FIGURES_CPU_SECONDS is a number"));
    println!("false alarms, 1,000 members, loss 1 %, {seconds} s of processor time:");
    let mut world = formed(1_000, Settings::default(), 2);
    world.network.loss = 10;
    world.run_for(Duration::from_secs(10));
    world.notices.clear();
    let (begun, datagrams, cpu) = (world.now, world.datagrams, cpu_seconds());
    while cpu_seconds() - cpu < seconds {
        world.run_for(Duration::from_secs(1));
    }
    let virtual_seconds = (world.now - begun).as_secs_f64();
    println!(
        "  {:.2} hours of the cluster: {} members taken for dead; \
         {:.1} datagrams a second and member",
        virtual_seconds / 3600.0,
        world.notices.iter().filter(|notice| !notice.up).count(),
        (world.datagrams - datagrams) as f64 / virtual_seconds / 1_000.0
    );
}

fn memory() {
    println!("memory of a home with 10^6 files:");
    for blocks in [10, 1] {
        let settings = Settings { max_entries_bytes: 1 << 30, ..Settings::default() };
        let mut world = World::new(1, settings, 3);
        world.start(0);
        let mut worst: f64 = 0.0;
        for index in 0..1_000_000 {
            world.act(0, |node, now| node.hold(now, file(index), VERSION, 0, blocks));
            if index > 100_000 && index % 1_000 == 0 {
                let counters = world.act(0, |node, _| node.counters()).expect("running");
                worst = worst.max(counters.entry_bytes as f64 / counters.entries as f64);
            }
        }
        let counters = world.act(0, |node, _| node.counters()).expect("running");
        println!(
            "  {blocks} blocks a file: {:.1} bytes an entry, {worst:.1} at the worst \
             beyond 10^5 files",
            counters.entry_bytes as f64 / counters.entries as f64
        );
    }
}

/// Entries in all homes, their bytes, and files of all homes.
fn known(world: &World) -> (u64, u64) {
    let nodes = world.hosts.iter().filter_map(|host| host.node.as_ref());
    nodes.map(ClusterNode::counters).fold((0, 0), |(entries, bytes), counters| {
        (entries + counters.entries, bytes + counters.entry_bytes)
    })
}

fn homes() {
    println!(
        "1,000 members hold 10^6 files of 10 blocks, and of 1; 90 % once, 9 % twice, 1 % by five:"
    );
    for blocks in [10, 1] {
        let mut world = formed(1_000, Settings::default(), 4);
        let mut held = vec![0_u64; 1_000];
        for index in 0..1_000_000_u64 {
            let holders = match index % 100 {
                0 => 5,
                1..10 => 2,
                _ => 1,
            };
            for holder in 0..holders {
                let node = ((index * 7919 + holder * 331) % 1_000) as usize;
                held[node] += u64::from(blocks);
                world.act(node, |node, now| node.hold(now, file(index), VERSION, 0, blocks));
            }
        }
        let total: u64 = held.iter().sum();
        let took = until_known(&mut world, total);
        let (entries, bytes) = known(&world);
        println!(
            "  {blocks} blocks: {:.1} bytes an entry; first announcements took {took:.2} s, \
             {} calls",
            bytes as f64 / entries as f64,
            world.calls
        );
        (world.calls, world.call_bytes, world.datagrams) = (0, 0, 0);
        for node in 0..100 {
            world.act(node, ClusterNode::leave);
            world.crash(node);
        }
        let took = until_known(&mut world, held[100..].iter().sum());
        println!(
            "  {blocks} blocks, 100 leave: all known again after {took:.2} s, {} calls, {:.1} MB, \
             {:.0} datagrams a member",
            world.calls,
            world.call_bytes as f64 / 1e6,
            world.datagrams as f64 / 1_000.0
        );
        (world.calls, world.call_bytes, world.datagrams) = (0, 0, 0);
        (100..200).for_each(|node| world.crash(node));
        let took = until_known(&mut world, held[200..].iter().sum());
        println!(
            "  {blocks} blocks, 100 crash: all known again after {took:.2} s, {} calls, {:.1} MB, \
             {:.0} datagrams a member",
            world.calls,
            world.call_bytes as f64 / 1e6,
            world.datagrams as f64 / 1_000.0
        );
    }
}

/// Runs until the homes know so many entries, and no more; seconds of virtual time.
fn until_known(world: &mut World, entries: u64) -> f64 {
    let begun = world.now;
    while !is_complete(world) || known(world).0 != entries {
        world.run_for(Duration::from_millis(50));
        let waited = world.now - begun;
        assert!(waited < Duration::from_secs(60), "{} of {entries}", known(world).0);
    }
    (world.now - begun).as_secs_f64()
}

fn lookups() {
    println!("processor time of a lookup:");
    for members in [4, 1_000] {
        let mut world = formed(members, Settings::default(), 5);
        for index in 0..100_000 {
            let node = (index % members as u64) as usize;
            world.act(node, |node, now| node.hold(now, file(index), VERSION, 0, 10));
        }
        world.run_for(Duration::from_secs(5));
        let mut asked = Vec::new();
        for index in 0..100_000 {
            let look = |node: &mut ClusterNode, now| node.lookup(now, file(index), VERSION, 0);
            if let Some(Lookup::Ask { home, request }) = world.act(1, look)
                && home == world.hosts[0].name
            {
                asked.push(request);
            }
        }
        let name = world.hosts[1].name.clone();
        let rounds = 200_000 / asked.len().max(1) + 1;
        let begun = cpu_seconds();
        let mut replies = Vec::new();
        for _ in 0..rounds {
            for request in &asked {
                let reply = world.act(0, |node, now| node.serve(now, &name, request));
                replies.push(reply.expect("running"));
            }
        }
        let served = (cpu_seconds() - begun) / (rounds * asked.len()) as f64;
        let home = world.hosts[0].name.clone();
        let begun = cpu_seconds();
        for reply in &replies {
            world.act(1, |node, now| node.learn(now, &home, reply));
        }
        let learned = (cpu_seconds() - begun) / replies.len() as f64;
        let begun = cpu_seconds();
        for index in 0..100_000 {
            world.act(1, |node, now| node.lookup(now, file(index), VERSION, 1));
        }
        let looked = (cpu_seconds() - begun) / 100_000.0;
        println!(
            "  {members} members: home {:.2} us, asker {:.2} us to ask and {:.2} us to learn \
             ({} files at the home)",
            served * 1e6,
            looked * 1e6,
            learned * 1e6,
            asked.len()
        );
    }
}

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let all: [(&str, fn()); 5] = [
        ("detection", detection),
        ("alarms", alarms),
        ("memory", memory),
        ("homes", homes),
        ("lookups", lookups),
    ];
    for (name, part) in all {
        if parts.is_empty() || parts.iter().any(|wanted| wanted == name) {
            part();
        }
    }
}
