//! Renders SVG pictures as PNG.

use std::io::{Error, Result};
use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// Pixels of a PNG for each unit of the SVG.
const SCALE: f32 = 2.0;

/// The picture as PNG, with glyphs of our own.
pub fn of(svg: &str) -> Result<Vec<u8>> {
    let mut options = usvg::Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    options.font_family = "DejaVu Sans".to_owned();
    let tree = usvg::Tree::from_str(svg, &options).map_err(Error::other)?;
    let impossible = || Error::other("a picture of this size is not possible");
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(impossible)?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(impossible)?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(Error::other)
}
