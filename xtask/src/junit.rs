//! Reads test reports in JUnit's XML, as Maven and nextest write them: the tests and the result of
//! each. Reads the elements that those two write, in their form; it is no XML parser.

/// One test of a report.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    head: &'a str,
    /// What is inside of the element.
    pub body: &'a str,
}

impl Case<'_> {
    /// Name of the test.
    pub fn name(&self) -> String {
        unescape(attribute(self.head, "name"))
    }

    /// What the test belongs to: a class, or a test program.
    pub fn class(&self) -> String {
        unescape(attribute(self.head, "classname"))
    }

    /// An attribute of the first element of this name inside.
    pub fn of(&self, element: &str, attribute_name: &str) -> String {
        let at = find(self.body, element);
        at.map_or(String::new(), |at| unescape(attribute(&self.body[at..], attribute_name)))
    }

    /// Whether an element of this name is inside.
    pub fn has(&self, element: &str) -> bool {
        find(self.body, element).is_some()
    }
}

/// The tests of a report, in its order.
pub fn cases(report: &str) -> Vec<Case<'_>> {
    let mut found = Vec::new();
    let mut rest = report;
    while let Some((head, body, after)) = next_element(rest, "testcase") {
        found.push(Case { head, body });
        rest = after;
    }
    found
}

/// What the elements of this name contain, with the markup taken out, in order.
pub fn texts(body: &str, element: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = body;
    while let Some((_, text, after)) = next_element(rest, element) {
        found.push(unescape(text));
        rest = after;
    }
    found
}

/// The first elements of this name in raw form, in order.
pub fn elements<'a>(body: &'a str, element: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = body;
    while let Some((_, text, after)) = next_element(rest, element) {
        found.push(text);
        rest = after;
    }
    found
}

/// An attribute of the first element of a text.
pub fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let head = &element[..element.find('>').unwrap_or(element.len())];
    let start = format!(" {name}=\"");
    let Some(at) = head.find(&start) else { return "" };
    let value = &head[at + start.len()..];
    &value[..value.find('"').unwrap_or(value.len())]
}

/// Where an element of exactly this name begins.
fn find(text: &str, element: &str) -> Option<usize> {
    let start = format!("<{element}");
    text.match_indices(&start).map(|(at, _)| at).find(|at| {
        let next = text[at + start.len()..].chars().next();
        next.is_some_and(|next| next == '>' || next == '/' || next.is_whitespace())
    })
}

/// Head, inside and what follows of the next element of this name.
fn next_element<'a>(text: &'a str, element: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let rest = &text[find(text, element)?..];
    let (head, inside) = rest.split_at(rest.find('>')? + 1);
    if head.ends_with("/>") {
        return Some((head, "", inside));
    }
    let end = format!("</{element}>");
    let at = inside.find(&end).unwrap_or(inside.len());
    Some((head, &inside[..at], inside.get(at + end.len()..).unwrap_or_default()))
}

/// Text without the marks for characters that XML cannot have.
fn unescape(text: &str) -> String {
    let text = text.trim_start_matches("<![CDATA[").trim_end_matches("]]>");
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_owned(), |text, (mark, character)| text.replace(mark, character))
}

#[cfg(test)]
mod tests {
    use super::{attribute, cases, texts};

    #[test]
    fn elements_are_told_apart_by_their_whole_name() {
        let report = r#"<testsuites><testsuite name="p::b"><testcase name="a::&lt;b&gt;"
            classname="p::b"><failureless/><system-out>x &amp;lt; y</system-out></testcase>
            <testcase name="c" classname="p::b"/></testsuite></testsuites>"#;
        let found = cases(report);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].class().as_str(), found[0].name().as_str()), ("p::b", "a::<b>"));
        assert!(!found[0].has("failure") && found[0].has("system-out"));
        assert_eq!(texts(found[0].body, "system-out"), ["x &lt; y"]);
        assert_eq!((found[1].name().as_str(), found[1].body), ("c", ""));
        assert_eq!(attribute("<a b=\"1\"><c d=\"2\">", "d"), "", "only of the first element");
    }
}
