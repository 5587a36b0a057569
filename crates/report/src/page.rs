//! Pages of HTML with pictures inside, which are read on a screen, on a telephone and on paper.

use crate::chart::Picture;

/// What every page looks like. Below 600 pixels the narrow pictures take the place of the wide
/// ones, and each row of a table becomes a list of its own.
const STYLE: &str = "\
*{box-sizing:border-box}\
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1.5rem 1rem;\
color:#222b33;overflow-wrap:break-word}\
h1{font-size:1.5rem;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2rem 0 .5rem}\
.main{background:#eef4f8;border-left:5px solid #0072b2;padding:.6rem 1rem;font-size:1.15rem}\
.warning{background:#fdf1e3;border-left:5px solid #d55e00;padding:.4rem 1rem;margin:.5rem 0}\
.small{color:#54606c;font-size:.85rem}\
figure{margin:1.5rem 0}figure svg{width:100%;height:auto;display:block}.narrow{display:none}\
table{border-collapse:collapse;margin:1rem 0}\
th,td{padding:.3rem .7rem;border-bottom:1px solid #d5dde5;text-align:right;vertical-align:top}\
th:first-child,td:first-child{text-align:left}td.figure{white-space:nowrap}\
@media screen and (max-width:600px){.wide{display:none}.narrow{display:block}\
table,tbody,tr,td{display:block;width:100%}tr:first-child{display:none}\
tr{border:1px solid #d5dde5;margin:.6rem 0;padding:.2rem .6rem}\
td,td:first-child{border:0;display:flex;justify-content:space-between;gap:1rem;padding:.1rem 0;\
white-space:normal}\
td::before{content:attr(data-name);color:#54606c;text-align:left}\
td:first-child{font-weight:bold}}\
@media print{body{padding:0;font-size:11px}figure{break-inside:avoid}@page{size:A4;margin:12mm}}";

/// Text as it stands in HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A whole page around `body`, which is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{body}\
         </body></html>\n"
    )
}

/// The sentence for which the page is read; `sentence` is HTML.
pub fn main_sentence(sentence: &str) -> String {
    format!("<p class=\"main\">{sentence}</p>\n")
}

/// What a reader must know before the figures.
pub fn warning(text: &str) -> String {
    format!("<p class=\"warning\">{}</p>\n", escaped(text))
}

/// A picture.
pub fn figure(picture: &Picture) -> String {
    // A picture goes into the page, so a declaration before it must not.
    let bare = |picture: &str| picture[picture.find("<svg").unwrap_or(0)..].to_owned();
    format!(
        "<figure><div class=\"wide\">{}</div><div class=\"narrow\">{}</div></figure>\n",
        bare(&picture.wide),
        bare(&picture.narrow)
    )
}

/// Cells of figures are not broken unless they are longer than this.
const FIGURE_LENGTH_MAX: usize = 16;

/// A table.
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut text = String::from("<table>\n<tr>");
    for name in header {
        text.push_str(&format!("<th>{}</th>", escaped(name)));
    }
    text.push_str("</tr>\n");
    for row in rows {
        text.push_str("<tr>");
        for (name, cell) in header.iter().zip(row) {
            let begins = cell.starts_with(|letter: char| letter.is_ascii_digit() || letter == '-');
            let is_figure = begins && cell.chars().count() <= FIGURE_LENGTH_MAX;
            let class = if is_figure { " class=\"figure\"" } else { "" };
            let (name, cell) = (escaped(name), escaped(cell));
            text.push_str(&format!("<td{class} data-name=\"{name}\">{cell}</td>"));
        }
        text.push_str("</tr>\n");
    }
    text + "</table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_picture_for_each_width_and_names_in_each_row() {
        let of = |text: &str| text.to_owned();
        let picture =
            Picture { wide: of("<?xml?>\n<svg>wide</svg>"), narrow: of("<svg>narrow</svg>") };
        let figure = figure(&picture);
        assert!(!figure.contains("<?xml") && figure.contains("<svg>narrow</svg>"));
        let header = ["storage", "a \"total\""].map(str::to_owned);
        let table = table(&header, &[vec!["<PFS>".to_owned(), "3010 s".to_owned()]]);
        assert!(table.contains("<td data-name=\"storage\">&lt;PFS&gt;</td>"), "{table}");
        let total = "<td class=\"figure\" data-name=\"a &quot;total&quot;\">3010 s</td>";
        assert!(table.contains(total), "{table}");
        let page = page("A & B", &warning("1 < 2"));
        assert!(page.contains("<h1>A &amp; B</h1>") && page.contains("1 &lt; 2"));
        assert!(page.contains("initial-scale=1") && page.contains("max-width:600px"));
    }
}
