//! Tests of the reference model, which all other results depend on.

use tidepool_proto::Access;

use super::*;

const READ: Opening = Opening::READ;

#[test]
fn names_and_handles_keep_a_file() {
    let mut model = Reference::default();
    model.open((0, 0), "plain/a", Opening { access: Access::ReadWrite, create: true, ..READ });
    let number = model.number("plain/a").unwrap();
    model.write(number, 4, b"xy");
    assert_eq!(model.file(number).bytes, b"\0\0\0\0xy");
    model.link("plain/a", "plain/b");
    model.unlink("plain/a");
    assert_eq!(model.links(number), 1);
    model.rename("plain/b", "plain/c");
    model.unlink("plain/c");
    assert_eq!(model.file(number).bytes.len(), 6, "the handle keeps it");
    model.close((0, 0));
    assert_eq!(model.total_bytes(), 0);
}

#[test]
fn renaming_between_two_names_of_a_file_keeps_both() {
    let mut model = Reference::default();
    model.create("plain/a");
    model.link("plain/a", "plain/b");
    model.rename("plain/a", "plain/b");
    assert_eq!(model.number("plain/a"), model.number("plain/b"));
    assert_eq!(model.links(model.number("plain/a").unwrap()), 2);
}

#[test]
fn a_reader_stays_with_its_epoch_and_a_writer_follows() {
    let mut model = Reference::default();
    let number = model.create("plain/a");
    model.write(number, 0, b"one");
    model.open((0, 0), "plain/a", READ);
    model.open((0, 1), "plain/a", Opening { access: Access::ReadWrite, ..READ });
    model.change("plain/a", OutsideChange::Truncate { size: 1 }, &[]);
    model.write(number, 0, b"two!");
    let seen = |key| -> Vec<Vec<u8>> {
        let handle = model.handle(key).unwrap();
        model.candidates(handle).iter().map(|c| c.range(0, 9).to_vec()).collect()
    };
    assert_eq!(seen((0, 0)), [b"one".to_vec()]);
    assert_eq!(seen((0, 1)), [b"one".to_vec(), b"two!".to_vec()]);
    model.open((0, 2), "plain/a", READ);
    let fresh = model.handle((0, 2)).unwrap();
    assert_eq!(model.candidates(fresh)[0].range(1, 2), b"wo");
    assert_eq!(model.candidates(fresh).len(), 1);
}

#[test]
fn a_replaced_file_lives_on_in_its_handles() {
    let mut model = Reference::default();
    let old = model.create("plain/a");
    model.write(old, 0, b"old");
    model.open((0, 0), "plain/a", READ);
    model.change("plain/a", OutsideChange::Replace { length: 3, restore_times: true }, b"new");
    assert_ne!(model.number("plain/a"), Some(old));
    assert_eq!(model.by_name("plain/a").unwrap().bytes, b"new");
    let handle = model.handle((0, 0)).unwrap();
    assert_eq!(model.candidates(handle)[0].range(0, 3), b"old");
}
