//! What the node tells of cached files: the list, in order, counted and only for those who may know
//! the names; and the map of one file.

mod support;

use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::config::UserQuota;
use tidepool_proto::files::{CachedFile, FileOrder};
use tidepool_proto::{FileService, OpenRequest};

const STRANGER: u32 = 4711;

fn list(fixture: &Fixture, order: FileOrder, count: u32, user_id: u32) -> Vec<CachedFile> {
    match fixture.node.admin(AdminRequest::Files { order, count }, None, user_id).unwrap() {
        AdminReply::Files(files) => files,
        other => panic!("{other:?}"),
    }
}

fn paths(files: &[CachedFile]) -> Vec<&str> {
    files.iter().map(|file| file.path.as_str()).collect()
}

#[test]
fn files_come_by_what_they_hold_or_by_what_was_read_of_them() {
    let fixture = Fixture::new();
    for (name, mib) in [("small", 2), ("middle", 5), ("large", 9)] {
        fixture.put(name, &content(1, mib << 20));
        fixture.read(name);
    }
    fixture.put("packed", &content(2, 1000));
    fixture.read("packed");
    let open = fixture.open("middle");
    for _ in 0..2 {
        read_all(&*open).unwrap();
    }
    let files = list(&fixture, FileOrder::Resident, 10, 0);
    assert_eq!(paths(&files), ["large", "middle", "small"]);
    assert_eq!(files.iter().map(|file| file.resident_bytes >> 20).collect::<Vec<_>>(), [9, 5, 2]);
    let files = list(&fixture, FileOrder::Read, 2, 0);
    assert_eq!(paths(&files), ["middle", "large"]);
    assert_eq!((files[0].read_bytes, files[0].open_handles), (15 << 20, 1));
    fixture.node.store().evict_all();
    assert!(list(&fixture, FileOrder::Read, 10, 0).is_empty(), "nothing is held");
}

#[test]
fn names_are_for_those_who_may_know_them() {
    let fixture = Fixture::new();
    fixture.put("of-root", &content(1, 2 << 20));
    fixture.read("of-root");
    assert_eq!(list(&fixture, FileOrder::Resident, 10, 0).len(), 1);
    assert!(list(&fixture, FileOrder::Resident, 10, STRANGER).is_empty());
}

fn read_as(fixture: &Fixture, name: &str, user_id: u32) {
    let lower = std::fs::File::open(fixture.path(name)).unwrap();
    let open = fixture.node.open(OpenRequest::to_read(lower.into(), user_id)).unwrap();
    read_all(&*open).unwrap();
}

#[test]
fn a_name_that_another_user_came_by_is_not_told() {
    let fixture = Fixture::new();
    fixture.put("public", &content(1, 2 << 20));
    std::fs::create_dir(fixture.path("secret")).unwrap();
    std::fs::hard_link(fixture.path("public"), fixture.path("secret/name")).unwrap();
    read_as(&fixture, "public", STRANGER);
    read_as(&fixture, "secret/name", 0);
    assert_eq!(paths(&list(&fixture, FileOrder::Resident, 10, STRANGER)), ["public"]);
}

#[test]
fn a_file_is_charged_to_who_reads_it_after_all_of_it_was_evicted() {
    let fixture = Fixture::with(|config| {
        config.quotas = vec![UserQuota { user_id: STRANGER, quota_bytes: 8 << 20 }];
    });
    for name in ["a", "b", "c", "d"] {
        fixture.put(name, &content(1, 4 << 20));
        read_as(&fixture, name, 0);
    }
    fixture.node.store().evict_all();
    ["a", "b", "c", "d"].iter().for_each(|name| read_as(&fixture, name, STRANGER));
    let status = fixture.node.status();
    assert!(status.store.resident_bytes <= 8 << 20, "{}", status.store.resident_bytes);
    assert_eq!(status.transfers.versions_invalidated, 0, "nothing was out of date");
}

#[test]
fn an_explanation_maps_a_whole_file_however_long() {
    let fixture = Fixture::new();
    let blocks = (100 << 30) / BLOCK;
    let file = std::fs::File::create(fixture.path("sparse")).unwrap();
    file.set_len(blocks * BLOCK).unwrap();
    let reader = fixture.open("sparse");
    let read = [0, 7, 20_000, 20_001, blocks - 1];
    let mut part = vec![1; 1 << 20];
    for block in read {
        reader.read_at(block * BLOCK, &mut part).unwrap();
    }
    let lower = std::fs::File::open(fixture.path("sparse")).unwrap().into();
    let reply = fixture.node.admin(AdminRequest::Explain, Some(lower), 0).unwrap();
    let AdminReply::Explain(explained) = reply else { panic!("{reply:?}") };
    let mut resident = Vec::new();
    let mut at = 0;
    for run in &explained.residency_runs {
        if run.state.is_resident() {
            resident.extend(at..at + run.blocks);
        }
        at += run.blocks;
    }
    assert_eq!(at, blocks, "{:?}", explained.residency_runs);
    assert!(read.iter().all(|block| resident.contains(block)), "{resident:?}");
    assert_eq!(explained.resident_bytes, resident.len() as u64 * BLOCK);
}
