package io.tidepool.stores;

import java.io.IOException;

/** A store that could not make room: what it holds is pinned or in use. */
final class NoRoomException extends IOException {

    private static final long serialVersionUID = 1L;

    NoRoomException(Throwable cause) {
        super("no room", cause);
    }
}
