//! Reads `guides.toml`: what pages need before their first block, and the blocks that are not run.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::blocks::Block;

/// Languages that are run: shell as it stands, configuration by the command of the page.
const RUN: [&str; 2] = ["sh", "toml"];

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    page: Vec<Page>,
}

/// What is said of a page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Its path in the checkout.
    path: PathBuf,
    /// Shell commands before the first block.
    #[serde(default)]
    pub before: String,
    /// The shell command that proves a block of configuration, which is in the file FILE.
    #[serde(default)]
    pub toml: String,
    /// Blocks that are not run.
    #[serde(default)]
    not_run: Vec<NotRun>,
}

/// A block that is not run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotRun {
    /// The beginning of the block.
    begins: String,
    /// Why, and what runs it instead.
    why: String,
}

impl List {
    /// The list as it was when this was compiled.
    pub fn read() -> List {
        toml::from_str(include_str!("guides.toml")).expect("guides.toml")
    }

    /// What it says of a page.
    pub fn page(&self, path: &Path) -> Page {
        self.page.iter().find(|page| page.path == path).cloned().unwrap_or_default()
    }

    /// An entry for a page that is not there.
    pub fn of_no_page(&self, pages: &[PathBuf]) -> Option<String> {
        let lost = self.page.iter().find(|page| !pages.contains(&page.path));
        lost.map(|page| page.path.display().to_string())
    }
}

impl Page {
    /// The blocks that are run. Each other one must be listed with a reason, and each entry needed.
    pub fn sort(&self, blocks: Vec<Block>) -> Result<Vec<Block>, String> {
        for NotRun { begins, why } in &self.not_run {
            if !blocks.iter().any(|block| block.text.starts_with(begins)) {
                return Err(format!("guides.toml: no block begins with `{begins}`"));
            }
            if why.trim().is_empty() {
                return Err(format!("guides.toml: `{begins}` has no reason"));
            }
        }
        let listed =
            |block: &Block| self.not_run.iter().any(|entry| block.text.starts_with(&entry.begins));
        let run: Vec<Block> = blocks.into_iter().filter(|block| !listed(block)).collect();
        let cannot = |block: &&Block| {
            !RUN.contains(&block.language.as_str())
                || block.language == "toml" && self.toml.is_empty()
        };
        match run.iter().find(cannot) {
            None => Ok(run),
            Some(block) => Err(format!(
                "line {}: a block of `{}` is neither run nor listed in guides.toml",
                block.line, block.language
            )),
        }
    }
}
