package io.tidepool.plane;

import java.util.List;

/** Writes JSON of objects, arrays, names and numbers. */
final class JsonText {

    private final StringBuilder text = new StringBuilder();

    JsonText open() {
        comma();
        text.append('{');
        return this;
    }

    JsonText close() {
        text.append('}');
        return this;
    }

    JsonText array(String name) {
        name(name);
        text.append('[');
        return this;
    }

    JsonText end() {
        text.append(']');
        return this;
    }

    JsonText field(String name, long value) {
        name(name);
        text.append(value);
        return this;
    }

    /** A name; null is written as such. */
    JsonText field(String name, String value) {
        name(name);
        if (value == null) {
            text.append("null");
        } else {
            quote(value);
        }
        return this;
    }

    /** An array of names. */
    JsonText names(String name, List<String> values) {
        array(name);
        for (String value : values) {
            comma();
            quote(value);
        }
        return end();
    }

    private void name(String name) {
        comma();
        quote(name);
        text.append(':');
    }

    private void comma() {
        int length = text.length();
        if (length > 0 && "{[:".indexOf(text.charAt(length - 1)) < 0) {
            text.append(',');
        }
    }

    private void quote(String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ' || Character.isSurrogate(c)) {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }

    @Override
    public String toString() {
        return text.toString();
    }
}
