//! The guides, word for word: every command block of the README and of the pages for users is run
//! as it stands, one page after the other in a machine of its own (`place.rs`), and what a page
//! shows as output is compared. What is not run is in `guides.toml` with its reason; a block that
//! is neither run nor there fails. A test a page, which has the name of the page.

mod blocks;
mod list;
mod output;
mod place;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use tidepool_testkit::machine;

use blocks::Block;
use list::{List, Page};

/// Pages, and directories of them.
const PAGES: [&str; 3] = ["README.md", "docs/FAQ.md", "docs/guide"];

fn main() {
    let arguments = Arguments::from_args();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let all = pages(&checkout);
    let trial = |page: &PathBuf| {
        let (checkout, page) = (checkout.clone(), page.clone());
        Trial::test(page.display().to_string(), move || run(&checkout, &page))
    };
    let mut trials: Vec<Trial> = all.iter().map(trial).collect();
    trials.push(Trial::test("the_list_names_pages", move || {
        List::read().of_no_page(&all).map_or(Ok(()), |page| Err(format!("no page {page}").into()))
    }));
    trials.push(Trial::test("patterns_of_output", || {
        output::proof();
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

/// The pages, by their paths in the checkout.
fn pages(checkout: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for name in PAGES {
        let path = checkout.join(name);
        if path.is_dir() {
            let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            pages.extend(names.map(|file| Path::new(name).join(file)));
        } else {
            pages.push(name.into());
        }
    }
    pages.sort();
    pages
}

fn run(checkout: &Path, page: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(checkout.join(page))?;
    let about = List::read().page(page);
    let blocks = about.sort(blocks::of(&text))?;
    if blocks.is_empty() {
        return Ok(());
    }
    if let Err(missing) = machine::can_mount() {
        machine::print_skip(&page.display().to_string(), &missing);
        return Ok(());
    }
    let place = place::Place::new(checkout)?;
    let ended = place.run(&script(&about, &blocks))?;
    let said = |block: &Block| place.output(block.line);
    if let Some(at) = ended {
        let block = blocks.iter().find(|block| block.line == at);
        let (words, output) = block.map_or_else(Default::default, |it| (it.text.clone(), said(it)));
        return Err(format!("{}:{at} does not work:\n{words}\n{output}", page.display()).into());
    }
    for block in &blocks {
        let Some(expected) = &block.output else { continue };
        let found = said(block);
        if !output::matches(expected, &found) {
            let place = format!("{}:{}", page.display(), block.line);
            return Err(format!("{place} shows\n{expected}\nand says\n{found}").into());
        }
    }
    Ok(())
}

/// One shell for a page, so that later blocks have the variables and the node of earlier ones.
fn script(page: &Page, blocks: &[Block]) -> String {
    let mut script = page.before.clone();
    for block in blocks {
        script.push_str(&format!("\nat {}\n", block.line));
        if block.language == "toml" {
            let file = format!("guide-{}.toml", block.line);
            script
                .push_str(&format!("cat > {file} <<'END OF FILE'\n{}\nEND OF FILE\n", block.text));
            script.push_str(&page.toml.replace("FILE", &file));
        } else {
            script.push_str(&block.text);
        }
    }
    script
}
