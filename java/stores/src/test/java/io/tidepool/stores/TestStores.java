package io.tidepool.stores;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import org.junit.Test;

/** Lines in both directions. */
public class TestStores {

    private static String answer(String line, ResizableStore store) {
        return Stores.answer(store, line);
    }

    private static String failure(Throwable failed) {
        return Answer.failed(1, failed);
    }

    @Test
    public void aCommandIsReadAndAnsweredUnderItsNumber() {
        assertThat(answer("7 resize 1024", bytes -> bytes + 1)).isEqualTo("7 done 1025");
        assertThat(answer("8 resize 0", bytes -> bytes)).isEqualTo("8 done 0");
    }

    @Test
    public void theLimitIsToldWhereTheStoreHasOne() {
        ResizableStore pool = new ResizableStore() {
            @Override
            public long resize(long capacityBytes) {
                throw new AssertionError("nothing is changed");
            }

            @Override
            public long limit() {
                return 5;
            }
        };
        assertThat(answer("7 limit", pool)).isEqualTo("7 done 5");
        assertThat(answer("8 limit", bytes -> bytes)).startsWith("8 failed unsupported ");
    }

    @Test
    public void linesThatAreNoCommandAreRefused() {
        String[] lines = {"", "resize", "1 resize", "1 resize x", "1 resize -1", "-1 resize 1",
            "1 evict 1", "1 limit 1", "limit", "1 resize 1 2", "1  resize 1", "+1 resize 1",
            "1 resize 99999999999999999999"};
        for (String line : lines) {
            assertThatThrownBy(() -> Command.of(line)).as(line)
                    .isInstanceOf(IllegalArgumentException.class);
            String answer = answer(line, bytes -> bytes);
            assertThat(answer).startsWith("0 failed invalid ");
            assertThat(answer.lines()).hasSize(1);
        }
    }

    @Test
    public void aFailureIsOneLineWithItsKind() {
        String answer = answer("3 resize 1", bytes -> {
            throw new IOException("one\ntwo", new IllegalStateException("three\nfour"));
        });
        assertThat(answer).startsWith("3 failed unavailable ").contains("one").contains("three");
        assertThat(answer.lines()).hasSize(1);
        assertThat(answer.length()).isLessThan(500);
    }

    @Test
    public void kindsAreToldApart() {
        assertThat(failure(new IOException("Connection refused"))).contains(" unavailable ");
        assertThat(failure(new NoClassDefFoundError("alluxio/X"))).contains(" classes ");
        assertThat(failure(new IOException(new NoSuchMethodException("x")))).contains(" classes ");
        assertThat(failure(new IOException("org.apache.hadoop.security.AccessControlException: x")))
                .contains(" denied ");
        assertThat(failure(new IOException("x", new IOException("UNAUTHENTICATED: no"))))
                .contains(" denied ");
        assertThat(failure(new IOException("Cache pool none does not exist.")))
                .contains(" invalid ");
        assertThat(failure(new IOException("UNIMPLEMENTED"))).contains(" unsupported ");
    }

    @Test
    public void aLongTextIsCut() {
        assertThat(failure(new IOException("x".repeat(10_000))).length()).isLessThan(500);
    }
}
