package io.tidepool.plane;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonFactoryBuilder;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import java.io.IOException;

/**
 * Reads fields of one JSON object within bounds. A field of a wrong type or out of its bounds makes
 * the object {@link #bad} and is passed over, so that the objects after it are still read.
 */
final class Json {

    /** Longest message that is looked at; a longer one is garbage unread. */
    static final int MESSAGE_BYTES = 1 << 20;
    /** Longest name of a node or a cluster, as in DNS. */
    static final int NODE_NAME = 253;
    /** Longest of all other names. */
    static final int NAME = 128;

    private static final int DEPTH = 32;

    /** Names of fields are not kept: those of garbage would pile up. */
    private static final JsonFactory FACTORY = new JsonFactoryBuilder()
            .streamReadConstraints(StreamReadConstraints.builder().maxNestingDepth(DEPTH).build())
            .configure(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES, false)
            .configure(JsonFactory.Feature.INTERN_FIELD_NAMES, false)
            .build();

    /** Whether the object is of no use. */
    boolean bad;

    private final JsonParser parser;

    Json(byte[] message) throws IOException {
        parser = FACTORY.createParser(message);
    }

    /** Moves to the next token; null at the end of the message. */
    JsonToken next() throws IOException {
        return parser.nextToken();
    }

    /** Name of the next field, whose value is the present token then; null at the end of it. */
    String field() throws IOException {
        String name = parser.nextFieldName();
        if (name != null) {
            parser.nextToken();
        }
        return name;
    }

    /** Passes over the present value. */
    void skip() throws IOException {
        parser.skipChildren();
    }

    boolean isNull() {
        return parser.currentToken() == JsonToken.VALUE_NULL;
    }

    /** Whether the present value is an object; bad otherwise. */
    boolean isObject() throws IOException {
        return is(JsonToken.START_OBJECT);
    }

    /** Whether the present value is an array; bad otherwise. */
    boolean isArray() throws IOException {
        return is(JsonToken.START_ARRAY);
    }

    private boolean is(JsonToken token) throws IOException {
        if (parser.currentToken() == token) {
            return true;
        }
        fail();
        return false;
    }

    private void fail() throws IOException {
        bad = true;
        skip();
    }

    /** A whole number from 0 on; one beyond the largest counts as the largest. */
    long whole() throws IOException {
        if (parser.currentToken() != JsonToken.VALUE_NUMBER_INT) {
            fail();
            return 0;
        }
        boolean large = parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER;
        boolean negative = large
                ? parser.getBigIntegerValue().signum() < 0 : parser.getLongValue() < 0;
        if (negative) {
            bad = true;
            return 0;
        }
        return large ? Long.MAX_VALUE : parser.getLongValue();
    }

    /** Any number from 0 on that has a place in a {@code long}, in units of 1 / {@code scale}. */
    long scaled(int scale) throws IOException {
        JsonToken token = parser.currentToken();
        if (token != JsonToken.VALUE_NUMBER_INT && token != JsonToken.VALUE_NUMBER_FLOAT) {
            fail();
            return 0;
        }
        double value = parser.getDoubleValue() * scale;
        if (!(value >= 0 && value < Long.MAX_VALUE)) {
            bad = true;
            return 0;
        }
        return Math.round(value);
    }

    /** A name without characters of control; bad where it is longer. */
    String name(int longest) throws IOException {
        String name = shortName(longest);
        if (name == null) {
            bad = true;
            return "";
        }
        return name;
    }

    /** The same, but null where it is longer or no name at all. */
    String shortName(int longest) throws IOException {
        if (parser.currentToken() != JsonToken.VALUE_STRING) {
            skip();
            return null;
        }
        if (parser.getTextLength() > longest) {
            return null;
        }
        String name = parser.getText();
        return name.chars().anyMatch(Character::isISOControl) ? null : name;
    }
}
