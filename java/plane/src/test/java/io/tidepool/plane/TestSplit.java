package io.tidepool.plane;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Arrays;
import java.util.Random;
import org.junit.Test;

/** One size becomes a ceiling for each store. */
public class TestSplit {

    @Test
    public void oneStoreHasAllWithinItsBounds() {
        StoreFacts[] one = {new StoreFacts("a", 0, 100, 1000, 64)};
        assertThat(Split.of(333, one)).containsExactly(333);
        assertThat(Split.of(7, one)).containsExactly(100);
        assertThat(Split.of(5000, one)).containsExactly(1000);
    }

    @Test
    public void severalShareByTheRoomBetweenTheirBounds() {
        StoreFacts[] two = {new StoreFacts("a", 0, 100, 400, 10),
            new StoreFacts("b", 0, 0, 900, 10)};
        assertThat(Split.of(500, two)).containsExactly(200, 300);
        assertThat(Split.of(50, two)).as("mins alone").containsExactly(100, 0);
        assertThat(Split.of(9999, two)).containsExactly(400, 900);
    }

    @Test
    public void whatRoundingLeavesGoesToTheFirstThatCanTakeIt() {
        StoreFacts[] two = {new StoreFacts("a", 0, 0, 1000, 100),
            new StoreFacts("b", 0, 0, 1000, 100)};
        assertThat(Split.of(500, two)).containsExactly(300, 200);
    }

    @Test
    public void boundsAndSumHoldForAll() {
        Random random = new Random(5);
        for (int round = 0; round < 20_000; round++) {
            StoreFacts[] stores = new StoreFacts[1 + random.nextInt(5)];
            long mins = 0;
            for (int i = 0; i < stores.length; i++) {
                long max = random.nextInt(1000);
                stores[i] = new StoreFacts("s" + i, 0, random.nextInt(1100), max,
                        random.nextInt(50));
                mins += stores[i].minBytes;
            }
            long target = random.nextInt(5000);
            long[] ceilings = Split.of(target, stores);
            for (int i = 0; i < stores.length; i++) {
                assertThat(ceilings[i]).isBetween(stores[i].minBytes, stores[i].ceilingBytes());
            }
            assertThat(Arrays.stream(ceilings).sum()).isLessThanOrEqualTo(Math.max(mins, target));
        }
    }
}
