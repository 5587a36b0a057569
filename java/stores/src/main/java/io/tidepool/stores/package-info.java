/** A program that stays running beside a node's controller, and sets the capacity of one store. */
package io.tidepool.stores;
