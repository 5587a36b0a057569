//! Finds the blocks of a page: fenced and indented code, with the output that is shown below a
//! block.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A block of code.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its line in the page, from 1.
    pub line: usize,
    /// `sh` where the page says nothing.
    pub language: String,
    /// What it says.
    pub text: String,
    /// The last lines of its output, as the page shows them: the next block, where it is `text`.
    pub output: Option<String>,
}

/// All blocks of a page in their order.
pub fn of(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut current: Option<Block> = None;
    for (event, range) in Parser::new(page).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(name) if !name.is_empty() => name.to_string(),
                    _ => "sh".to_owned(),
                };
                let line = 1 + page[..range.start].matches('\n').count();
                current = Some(Block { line, language, text: String::new(), output: None });
            }
            Event::Text(text) => {
                if let Some(block) = &mut current {
                    block.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some(block) = current.take() else { continue };
                match blocks.last_mut() {
                    Some(last) if block.language == "text" && last.output.is_none() => {
                        last.output = Some(block.text);
                    }
                    _ => blocks.push(block),
                }
            }
            _ => {}
        }
    }
    blocks
}
